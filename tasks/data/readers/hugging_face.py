"""Read the rows of Hugging Face datasets, from the hub or from a folder that `save_to_disk` wrote."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from baton.infra.storage.address import File, digest_of, find
from baton.infra.storage.buckets import is_bucket
from baton.infra.text import clause
from baton.tasks.core.job import StageError
from baton.tasks.data.readers.arrow_rows import rows_of
from baton.tasks.data.readers.raw import Raw, chosen_fields, encoded, refuse_large
from baton.tasks.data.source_spec import HuggingFaceSource, json_at, listed

ROWS = 32  # in memory at a time


def read_hugging_face(source: HuggingFaceSource) -> Iterator[Raw]:
    """Read documents, which are named by their row: "owner/name/train#17". Raises StageError."""
    rows, count = rows_of_hugging_face(source)
    total = min(count or source.limit or 0, source.limit or count or 0)
    name = source.split if digest_of(source.name) else f"{source.name}/{source.split}"
    for row, record in enumerate(rows):
        if row == source.limit:
            return
        where = f"{name}#{row}"
        for field, column in ("text_field", source.text_field), *(("metadata", each) for each in source.metadata):
            if column not in record:
                raise StageError(f"{where}: no column {column!r}; it has {listed(list(record))}. Set {field}.")
        text = encoded(record[source.text_field], where)
        refuse_large(len(text), source.max_bytes(), where)
        done = min(1.0, (row + 1) / total) if total else 0.0
        yield Raw(where, text, done, chosen_fields(record, source.metadata))


def _is_at_an_address(source: HuggingFaceSource) -> bool:
    return is_bucket(source.name) and not digest_of(source.name)


def rows_of_hugging_face(source: HuggingFaceSource) -> tuple[Iterator[dict[str, Any]], int | None]:
    """The dataset's rows (see arrow_rows.py) and, if known, their number. Raises StageError."""
    tables, count = _saved(source) if _is_at_an_address(source) else _opened(source)
    return (row for table in tables for row in rows_of(table)), count


def tables_of(rows: Any) -> Iterator[pa.Table]:
    """The tables of a dataset as it is stored: images and audio are not decoded."""
    return iter(rows.with_format("arrow").iter(batch_size=ROWS))


def _saved(source: HuggingFaceSource) -> tuple[Iterator[pa.RecordBatch], int | None]:
    """The rows and row count of a dataset that `save_to_disk` wrote. The rows are streamed, whereas the datasets
    library would download them first."""
    place = source.name.rstrip("/")
    if json_at(f"{place}/dataset_dict.json") is not None:
        place = f"{place}/{source.split}"
    files = {file.name: file for file in find(place)}
    try:
        shards = [files[item["filename"]] for item in json_at(f"{place}/state.json")["_data_files"]]
        about = json_at(f"{place}/dataset_info.json")
    except (KeyError, TypeError, ValueError) as error:
        raise StageError(f"dataset {source.name!r}: not in save_to_disk's format: {error!r:.200}") from error
    split = (about.get("splits") or {}).get(source.split) or {}
    return _batches(shards), split.get("num_examples")


def _batches(files: list[File]) -> Iterator[pa.RecordBatch]:
    for item in files:
        try:
            with item.open() as opened, pa.ipc.open_stream(opened) as stream:
                for batch in stream:
                    yield from (batch.slice(start, ROWS) for start in range(0, len(batch), ROWS))
        except pa.ArrowInvalid as error:
            raise StageError(f"{item.place}: not readable as Arrow ({error}); save the dataset again") from error


def _opened(source: HuggingFaceSource) -> tuple[Iterator[pa.Table], int | None]:
    import datasets

    folder = source.folder()
    try:
        if folder and ((folder / "state.json").exists() or (folder / "dataset_dict.json").exists()):
            loaded = datasets.load_from_disk(str(folder))
            rows = loaded[source.split] if isinstance(loaded, datasets.DatasetDict) else loaded
        else:
            name = str(folder) if folder else source.name
            rows = datasets.load_dataset(name, source.config, split=source.split, streaming=source.streaming)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise StageError(
            f"dataset {source.name!r}, config {source.config!r}, split {source.split!r}: {clause(error)}. "
            "Check name, config and split; a hub name needs a network (and HF_HUB_OFFLINE unset)."
        ) from error
    if not isinstance(rows, datasets.IterableDataset):
        return tables_of(rows), len(rows)
    known = (rows.info.splits or {}).get(source.split)
    return tables_of(rows), known.num_examples if known else None
