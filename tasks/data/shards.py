"""The engine that tokenizes a corpus into Megatron's `.bin/.idx`: `train`, or `train-<source>` for each named source,
and `held_out`; a large one has several `.bin/.idx` (prefixes.py).

Each document is one sequence, in the corpus' order: BOS if the tokenizer adds one to a text, the document, and the
end-of-text token. Worker processes work in two rounds: `encode` tokenizes each part of each of the corpus' files
(encode.py), and `join` concatenates them (merge_parts.py). So the result does not depend on the number of workers, a
killed engine continues with the missing parts, and several machines that a placement has started share the encoding;
the first joins the parts. After pods that encoded a share each, only files with missing parts are fetched.

The parts of a corpus in several partitions are cached: after a change in a source, only the files of new partitions are
tokenized.

Facts: `tokens` (train) and `held_out_tokens` include these tokens; `held_out_bytes` is the UTF-8 size of the
held-out documents; `vocab_size`, `eos_id` (the end-of-text token) and `tokenizer_digest` are those of the tokenizer;
`sources` has the training tokens of each named source, and `prefixes` those of each `.bin/.idx` if one source has
several.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

from baton.infra.process.torchrun_env import Node, placed_nodes, this_node
from baton.infra.storage.durable import make_folder, remove, write_json
from baton.tasks.core.job import Input, Job, main
from baton.tasks.core.manifest import Manifest, json_key, read_manifest
from baton.tasks.core.stored import manifest_at
from baton.tasks.data.documents import split_names, stem
from baton.tasks.data.encode import DocumentEncoder, EncodeItem, encode, encoded
from baton.tasks.data.encoders import choose
from baton.tasks.data.machines import Rounds, Span
from baton.tasks.data.merge_parts import JoinItem, join
from baton.tasks.data.partition_cache import disk_cache
from baton.tasks.data.prefixes import HELD_OUT, FilePart, Prefix, parts, prefixes
from baton.tasks.data.rounds import NOTHING, Amount, wait_for, workers
from baton.tasks.data.spec import ShardsSpec
from baton.tasks.data.stored_folders import stored
from baton.tasks.models.tokenizers import beginning, plain

ENCODE_VERSION = 5  # raise it when the same part would have other tokens
PARTS = "tokens"  # in the job's folder; not in work/, whose complete folders tasks/core/offsite.py would send too
ENCODER = "encoder.json"  # in the record
ROUNDS = {"encode": Span(0, 98, "parts", last=True), "join": Span(98, 100, "files")}


def work(job: Job) -> None:
    spec = job.spec(ShardsSpec)
    machine = this_node(placed_nodes(spec.machines))
    if machine.nodes == 1:  # others may be at work
        for left in (*job.work.rglob("*.partial"), *(job.directory / PARTS).glob("*.partial")):  # by a killed engine
            remove(left)
    corpus = Input(**job.inputs["corpus"])
    if corpus.path or spec.machines == 1:  # otherwise other pods have made most parts
        corpus = replace(corpus, path=str(corpus.local()))
    about = manifest_at(corpus.path or corpus.place)
    plan = prefixes(about)
    files = [file for prefix in plan for file in prefix.files]
    encoder = encoder_of(job, corpus, about, files)
    sized = encode_items(job, corpus, about, files, encoder)
    items = [item for item, _ in sized]
    with workers(spec.concurrency) as pool:
        rounds = Rounds(job, ROUNDS, pool, machine)
        rounds.run("encode", encode, items, [item.folder for item in items], [size for _, size in sized])
        if not machine.rank:
            _join(job, about, plan, items, encoder, replace(rounds, machine=Node()))
    if machine.rank:
        wait_for([job.directory / "result.json"], lambda _: None)
        return
    disk_cache().make_room()
    remove(job.work)
    remove(job.directory / PARTS)


def _join(
    job: Job,
    corpus: Manifest,
    plan: Sequence[Prefix],
    items: Sequence[EncodeItem],
    encoder: DocumentEncoder,
    rounds: Rounds,
) -> None:
    """Make the output from the encoded parts."""
    of_file: dict[str, list[Path]] = {}
    for item in items:
        of_file.setdefault(item.part.file, []).append(item.folder)
    parts_of = [[part for file in prefix.files for part in of_file[file]] for prefix in plan]
    amounts = [reduce(Amount.plus, map(encoded, each), NOTHING) for each in parts_of]
    folder = job.work / f"{json_key([[part.name for part in each] for each in parts_of])}.join"
    joins = [JoinItem(folder / prefix.name, each, encoder.dtype) for prefix, each in zip(plan, parts_of, strict=True)]
    rounds.run("join", join, joins, [item.folder for item in joins], [max(1, amount.tokens) for amount in amounts])
    job.empty_output()
    rounds.record()
    write_json(job.record / ENCODER, {"text": encoder.choice.text()})
    for joined in joins:
        for path in joined.folder.iterdir():
            os.link(path, job.output / path.name)
    amounts_by_name = {prefix.name: amount for prefix, amount in zip(plan, amounts, strict=True)}
    facts = _facts(sorted(corpus.facts.get("sources", {})), plan, amounts_by_name, encoder)
    job.finish(tokenizer_digest=job.inputs["tokenizer"]["digest"], **facts)


def encode_items(
    job: Job, corpus: Input, about: Manifest, files: Sequence[str], encoder: DocumentEncoder
) -> list[tuple[EncodeItem, int]]:
    """All parts of some files of a corpus, with their sizes. In a pod, all are stored for other pods and other corpora;
    elsewhere, those of a corpus in several files are cached."""
    several = len(split_names(about.files, "train")) > 1
    cache = stored(job) or (disk_cache() if several else None)
    folder = job.directory / PARTS
    make_folder(folder)
    common = [
        ENCODE_VERSION,
        version("tokenizers"),
        job.inputs["tokenizer"]["digest"],
        encoder.vocab_size,
        encoder.eos_id,
    ]

    def item(part: FilePart) -> EncodeItem:
        key = json_key([*common, about.files[part.file].blake3, part.number, part.of])
        return EncodeItem(folder / f"{key}.tokens", corpus, part, encoder, cache)

    return [(item(part), max(1, part.size)) for name in files for part in parts(name, about.files[name].size)]


def encoder_of(job: Job, corpus: Input, about: Manifest, files: Sequence[str]) -> DocumentEncoder:
    """The tokenizer, with the choice of its encoder for these files of a corpus. The choice is made by the files on
    this machine; if the corpus is not here, its largest file is fetched."""
    folder = Path(job.inputs["tokenizer"]["path"])
    facts = read_manifest(folder).facts
    job.progress(0, 100, "%", round="compare encoders")
    largest = sorted(files, key=lambda name: about.files[name].size)[-1:]
    choice = choose(folder, replace(corpus, files=largest).local() if not corpus.path else Path(corpus.path))
    print(choice.text(), flush=True)
    begin = tuple(beginning(plain(folder)))
    return DocumentEncoder(
        folder, facts["vocab_size"], facts["eos_id"], () if begin == (facts["eos_id"],) else begin, choice
    )


def _facts(
    sources: Sequence[str], plan: Sequence[Prefix], amounts: Mapping[str, Amount], encoder: DocumentEncoder
) -> dict[str, Any]:
    """The facts of the shards. `sources` are the names, `amounts` are by the prefix's name."""
    held_out = amounts[HELD_OUT]
    trained = {prefix.name: amounts[prefix.name].tokens for prefix in plan if prefix.stem != HELD_OUT}
    facts: dict[str, Any] = {
        "tokens": sum(trained.values()),
        "held_out_tokens": held_out.tokens,
        "held_out_bytes": held_out.text_bytes,
        "vocab_size": encoder.vocab_size,
        "eos_id": encoder.eos_id,
    }
    if sources:
        by_source = {name: [prefix.name for prefix in plan if prefix.stem == stem("train", name)] for name in sources}
        facts["sources"] = {name: sum(trained[prefix] for prefix in prefixes) for name, prefixes in by_source.items()}
    if several := {prefix.name: trained[prefix.name] for prefix in plan if prefix.name != prefix.stem}:
        facts["prefixes"] = several
    return facts


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each worker, which inherits it
    main(work)
