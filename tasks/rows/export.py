"""A set of rows for somebody else, in a folder or on the hub, as `datasets.load_dataset` reads it."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from baton.infra.paths import baton_home, home_path
from baton.infra.storage.hub import TAG, Consent, Pushed, Repository
from baton.infra.storage.hub import push as push_files
from baton.infra.text import number, words
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import MANIFEST, ArtifactError, Manifest, file_digest, read_manifest, verify

CARD = "README.md"
FILES = {"train": "train.jsonl", "test": "held_out.jsonl"}  # by the names of splits that libraries expect
DATA_FILES = ("*.jsonl", "*.json", "*.parquet")  # of an earlier version
KIND = "rows"


def find_rows(named: str) -> Path | None:
    """Return the newest set of rows in the home folder with this title, such as rows-chat, or with a digest that begins
    so, or the folder itself; None if there is none. Raises StageError if several digests begin so."""
    if (Path(named) / MANIFEST).is_file():
        return Path(named) if read_manifest(Path(named)).kind == KIND else None
    known: dict[Path, Manifest] = {}
    for path in (home_path() / "jobs").glob(f"*/output/{MANIFEST}"):
        try:
            manifest = read_manifest(path.parent)
        except ArtifactError:
            continue  # a damaged one is not offered
        if manifest.kind == KIND and (
            manifest.title == named or (len(named) > 5 and manifest.digest.startswith(named))
        ):
            known[path.parent] = manifest
    digests = {manifest.digest for manifest in known.values() if manifest.title != named}
    if len(digests) > 1:
        raise StageError(
            f"{named}: {len(digests)} sets of rows have digests that begin so: {', '.join(sorted(digests))}"
        )
    return max(known, key=lambda folder: (folder / MANIFEST).stat().st_mtime) if known else None


def fill(source: Path, folder: Path) -> None:
    """Fill an empty folder with the rows of both splits and a card. Raises ArtifactError."""
    manifest = verify(source)
    for name in FILES.values():
        shutil.copyfile(source / name, folder / name)
        if file_digest(folder / name) != manifest.files[name].blake3:
            raise ArtifactError(f"{folder / name}: after the copy, it is not as in {source}")
    (folder / CARD).write_text(card(manifest), encoding="utf-8")


def push(source: Path, repository: Repository, consent: Consent) -> Pushed:
    """Push a set of rows to a repository of the hub. Raises ArtifactError, StorageError."""
    with TemporaryDirectory(dir=baton_home(), prefix="export-", suffix=".partial") as place:
        fill(source, Path(place))
        files = {path.name: path for path in Path(place).iterdir()}
        return push_files(repository, files, consent, read_manifest(source).title or KIND, DATA_FILES)


def card(manifest: Manifest) -> str:
    """Return the text of README.md, whose front matter names the splits."""
    facts = manifest.facts
    counts = {"train": facts["rows"], "test": facts["held_out_rows"]}
    files = [{"split": split, "path": FILES[split]} for split, count in counts.items() if count]
    front = {"configs": [{"config_name": "default", "data_files": files}], "tags": [TAG]}
    left_out = ", ".join(f"{number(facts[name])} {name}" for name in ("duplicates", "faulty", "contaminated"))
    return (
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {manifest.title or KIND}\n\n"
        f"Rows for training language models, prepared by Baton: {words(facts['row_kind'])}, "
        f"{'conversations' if facts['conversational'] else 'text'}.\n\n| split | rows |\n| --- | --- |\n"
        + "".join(f"| {split} | {number(count)} |\n" for split, count in counts.items())
        + f"\nColumns: {', '.join(facts['columns'])}. Rows that were left out: {left_out}. "
        f"Digest of the set: {manifest.digest}.\n"
    )
