"""The engine that tokenizes a corpus into Megatron's `.bin/.idx`: `train`, or `train-<source>` for each named source,
and `held_out`.

Each document is one sequence that ends with the end-of-text token. Documents keep the corpus's order, so the result
does not depend on the number of workers. Twice a second the engine syncs its files and records their sizes and
digests; a restarted run verifies the files, truncates them to the recorded sizes and continues.

Facts: `tokens` (train) and `held_out_tokens` include end-of-text tokens; `held_out_bytes` is the UTF-8 size of the
held-out documents; `vocab_size`, `eos_id` (the end-of-text token) and `tokenizer_digest` are the tokenizer's;
`sources` has the training tokens of each named source.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from blake3 import blake3

from infra.durable import write_json
from tasks.data.documents import Split, row_groups, stem
from tasks.data.encode import Encoded, encode_in_order, worker_pool
from tasks.data.indexed_dataset import token_dtype, write_index
from tasks.data.spec import ShardsSpec
from tasks.job import Job, main
from tasks.manifest import read_manifest, remove

NOTE_INTERVAL_S = 0.5  # between records of the files' sizes and digests
PIECE = 64 << 20  # bytes hashed at a time


@dataclass(frozen=True)
class Written:
    """How much of a split has been written."""

    groups: int = 0
    documents: int = 0
    id_bytes: int = 0
    text_bytes: int = 0

    def plus(self, more: Encoded) -> "Written":
        return Written(
            self.groups + 1,
            self.documents + len(more.lengths) // 4,
            self.id_bytes + len(more.ids),
            self.text_bytes + more.text_bytes,
        )


@dataclass(frozen=True)
class Shard:
    """One split being written: its ids, its documents' lengths, and the progress record (`note`) for resuming."""

    ids: Path
    index: Path
    lengths: Path
    note: Path

    def written(self) -> Written:
        """What the last progress record covers; nothing if there is none or the files do not match it."""
        if not self.note.exists():
            return Written()
        try:
            note = json.loads(self.note.read_text())
            noted = Written(**note["written"])
            sizes = {self.ids: noted.id_bytes, self.lengths: noted.documents * 4}
            damaged = [path for path, size in sizes.items() if _hasher(path, size).hexdigest() != note[path.name]]
        except (ValueError, TypeError, KeyError):
            damaged = [self.note]
        if damaged:
            print(f"{damaged[0]} does not match its record; rebuilding the split", flush=True)
        return Written() if damaged else noted

    def append(self, start: Written, more: Iterator[Encoded]) -> Iterator[Written]:
        """Truncate the files to `start` and append to them; yields the total after each item."""
        done, noted = start, time.monotonic()
        with self.ids.open("ab") as ids, self.lengths.open("ab") as lengths:
            ids.truncate(start.id_bytes)
            lengths.truncate(start.documents * 4)
            hashers = {path: _hasher(path, path.stat().st_size) for path in (self.ids, self.lengths)}
            for encoded in more:
                ids.write(encoded.ids)
                lengths.write(encoded.lengths)
                hashers[self.ids].update(encoded.ids)
                hashers[self.lengths].update(encoded.lengths)
                done = done.plus(encoded)
                if time.monotonic() - noted > NOTE_INTERVAL_S:
                    for stream in (ids, lengths):
                        stream.flush()
                        os.fsync(stream.fileno())
                    digests = {path.name: hasher.hexdigest() for path, hasher in hashers.items()}
                    write_json(self.note, {"written": asdict(done), **digests})
                    noted = time.monotonic()
                yield done


def work(job: Job) -> None:
    job.spec(ShardsSpec)
    corpus, tokenizer = job.input("corpus"), job.input("tokenizer")
    documents, about = read_manifest(corpus).facts, read_manifest(tokenizer)
    vocab_size, eos_id = about.facts["vocab_size"], about.facts["eos_id"]
    dtype = token_dtype(vocab_size)
    named = sorted(documents.get("sources", {}))
    parts: list[tuple[Split, str | None]] = [*(("train", name) for name in named or [None]), ("held_out", None)]
    shards = {stem(*part): _shard(job, stem(*part)) for part in parts}
    if not any(shard.note.exists() for shard in shards.values()):
        remove(job.output)
    job.output.mkdir(parents=True, exist_ok=True)

    total_mb = (documents["bytes"] + documents["held_out_bytes"]) / 1e6
    written: dict[str, Written] = {}
    with worker_pool(tokenizer, eos_id, dtype) as pool:
        for (split, source), (name, shard) in zip(parts, shards.items(), strict=True):
            before = sum(done.text_bytes for done in written.values())
            start = written[name] = shard.written()
            encoded = encode_in_order(pool, row_groups(corpus, split, source)[start.groups :])
            for written[name] in shard.append(start, encoded):
                job.progress((before + written[name].text_bytes) / 1e6, total_mb, "MB")
            write_index(shard.index, shard.lengths, dtype)
    tokens = {name: done.id_bytes // dtype.itemsize for name, done in written.items()}
    held_out_tokens = tokens.pop("held_out")
    job.finish(
        tokens=sum(tokens.values()),
        held_out_tokens=held_out_tokens,
        held_out_bytes=written["held_out"].text_bytes,
        vocab_size=vocab_size,
        eos_id=eos_id,
        tokenizer_digest=about.digest,
        **({"sources": {name: tokens[stem("train", name)] for name in named}} if named else {}),
    )
    shutil.rmtree(job.work)


def _hasher(path: Path, size: int) -> blake3:
    """BLAKE3 of the first `size` bytes of a file, or of all if it has fewer."""
    hasher = blake3()
    if path.exists():
        with path.open("rb") as stream:
            while piece := stream.read(min(size, PIECE)):
                hasher.update(piece)
                size -= len(piece)
    return hasher


def _shard(job: Job, name: str) -> Shard:
    return Shard(
        ids=job.output / f"{name}.bin",
        index=job.output / f"{name}.idx",
        lengths=job.work / f"{name}.lengths",
        note=job.work / f"{name}.json",
    )


if __name__ == "__main__":
    main(work)
