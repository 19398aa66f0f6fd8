"""The page of each kind of artifact, as blocks."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from infra.text import count, number, share, size, value, words
from infra.tracking.flatten import leaves
from infra.tracking.redact import redact
from infra.tracking.relations import relation
from tasks.evaluate.results import read_results
from tasks.pages.blocks import Block, Cell, Code, Fold, Mark, Pieces, Table, Text
from tasks.pages.decision import decision
from tasks.pages.endpoint import endpoint
from tasks.pages.samples import samples
from tasks.pages.scores import measured_on, score_bars, score_table, set_table
from tasks.pages.source import Source
from tasks.pages.training import training_curves

MOST_BROKEN = 20  # files that are named
MOST_ROWS = 400  # of a mapping table


def about(source: Source) -> list[Block]:
    """The page of one artifact: its notices, what is specific to its kind, then its spec, inputs and versions."""
    notices = [Text(text, "bad") for text in source.notices()]
    shown = KINDS.get(source.manifest.kind, _facts)(source)
    return [*notices, *shown, *_made_with(source)]


def heading(source: Source) -> str:
    """Base model · 1a2b3c4d5e6f"""
    label = source.manifest.facts.get("label")
    name = words(source.manifest.kind).replace("hf model", "model")
    return f"{name[:1].upper()}{name[1:]}{f' {label}' if label else ''} · {source.digest}"


def _corpus(source: Source) -> list[Block]:
    facts = source.manifest.facts
    split: list[list[Cell]] = [
        ["train", number(facts["documents"]), size(facts["bytes"])],
        ["held out", number(facts["held_out_documents"]), size(facts["held_out_bytes"])],
    ]
    left_out = ", ".join(f"{number(facts[name])} {words(name)}" for name in ("duplicates", "empty", "invalid_utf8"))
    if broken := source.record_json("broken.json"):
        left_out += f"; of {number(len(broken))} broken files: {'; '.join(broken[:MOST_BROKEN])}"
    blocks: list[Block] = [Table("Documents", ["split", "documents", "text"], split)]
    blocks.append(Text(f"Left out: {left_out}.", "quiet"))
    blocks += [*_sources(source), *_curation(source), *_changes(source), *_speeds(source)]
    documents = source.record_json("samples.json") or []
    excerpts: list[Block] = [Code(document["text"], document["source"]) for document in documents]
    return [*blocks, Fold("Held-out documents (excerpts)", excerpts)] if excerpts else blocks


def _sources(source: Source) -> list[Block]:
    """The size of each named source, if there are any."""
    rows: list[list[Cell]] = [
        [name, number(of["documents"]), size(of["bytes"]), number(of["held_out_documents"]), size(of["held_out_bytes"])]
        for name, of in source.manifest.facts.get("sources", {}).items()
    ]
    head = ["source", "train documents", "text", "held out", "text"]
    return [Table("Sources", head, rows)] if rows else []


def _curation(source: Source) -> list[Block]:
    """What each step of the curation did to each source, and samples of what it dropped."""
    curation = source.record_json("curation.json")
    if curation is None:
        return []
    counts = [(step, name, of) for step, sources in curation["steps"].items() for name, of in sources.items()]
    rows: list[list[Cell]] = []
    excerpts: list[Block] = []
    for step, name, of in counts:
        reasons = sorted(of["reasons"].items(), key=lambda item: (-item[1], item[0]))
        dropped = share(of["dropped"] / max(1, of["documents"]))
        why = ", ".join(f"{reason} {number(times)}" for reason, times in reasons)
        sizes = [number(of["documents"]), number(of["dropped"]), dropped, size(of["dropped_bytes"])]
        rows.append([step, name, *sizes, number(of["changed"]), why])
        excerpts += [
            Code(sample["text"], f"{step}: {reason}, {sample['source']}")
            for reason, _ in reasons
            for sample in of["samples"][reason]
        ]
    head = ["step", "source", "documents", "dropped", "share", "text", "changed", "reasons"]
    blocks: list[Block] = [Table("Curation", head, rows, "llrrrrrl")]
    return [*blocks, Fold("Dropped documents (excerpts)", excerpts)] if excerpts else blocks


def _rows(source: Source) -> list[Block]:
    facts = source.manifest.facts
    split: list[list[Cell]] = [["train", number(facts["rows"])], ["held out", number(facts["held_out_rows"])]]
    left_out = ", ".join(f"{number(facts[name])} {name}" for name in ("duplicates", "faulty", "contaminated"))
    columns = ", ".join(facts["columns"])
    blocks: list[Block] = [Table(f"Rows: {facts['row_kind']}", ["split", "rows"], split)]
    blocks.append(Text(f"Format: {facts['format']}; columns {columns}. Left out: {left_out}.", "quiet"))
    rows = source.record_json("samples.json") or []
    shown: list[Block] = [Code(json.dumps(row, ensure_ascii=False, indent=1)) for row in rows]
    return [*blocks, Fold("Sample rows", shown)] if shown else blocks


def _reward_check(source: Source) -> list[Block]:
    """Each list of rewards on the rows' own answers."""
    blocks: list[Block] = []
    for one in source.content_json("check.json") or []:
        caption = f"{one['path']}, on data.{one['data']}"
        rows: list[list[Cell]] = [
            [line["reward"], _score(line["own"]), _score(line["others"]), number(line["rows"]), _fault(line["fault"])]
            for line in one["lines"]
        ]
        head = ["reward", "own answers", "of other rows", "rows", ""]
        if rows:
            blocks.append(Table(caption, head, rows, "lrrrl"))
        else:
            blocks.append(Text(f"{caption}: nothing to try; {number(one['rows'])} of the first rows have an answer."))
    return blocks


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _fault(fault: str) -> Cell:
    return Mark(fault, "bad") if fault else ""


def _changes(source: Source) -> list[Block]:
    """Changes in the source since the previous corpora, if this is an incremental corpus."""
    changes = source.content_json("changes.json")
    if changes is None:
        return []
    facts = source.manifest.facts
    new = facts["documents"] + facts["held_out_documents"] - facts.get("edited", 0)
    counts: list[list[Cell]] = [["new", number(new)]]
    counts += [[name, number(len(changes[name]))] for name in ("edited", "renamed", "returned", "deleted")]
    counts.append(["gone", number(facts.get("gone", 0))])
    rows: list[list[Cell]] = [
        *([row["source"], "edited", f"{row['before'][:12]} → {row['after'][:12]}"] for row in changes["edited"]),
        *([row["after"], "renamed", f"was {row['before']}"] for row in changes["renamed"]),
        *([row["source"], name, row["id"][:12]] for name in ("deleted", "returned") for row in changes[name]),
    ]
    blocks: list[Block] = [Table("Since the previous corpora", ["change", "documents"], counts)]
    if rows:
        more = f", the first {MOST_ROWS} shown" if len(rows) > MOST_ROWS else ""
        listed = Table("Changes", ["document", "change", ""], rows[:MOST_ROWS], "lll")
        blocks.append(Fold(f"{number(len(rows))} changes{more}", [listed]))
    return blocks


def _tokenizer(source: Source) -> list[Block]:
    facts = source.manifest.facts
    sample = source.record_json("sample.json")
    summary = f"Vocabulary of {number(facts['vocab_size'])}."
    if sample is None:
        return [Text(summary)]
    summary += f" {sample['bytes_per_token']:.2f} bytes per token on held-out text."
    return [Text(summary), Pieces("A held-out text in its tokens (⏎ is a newline)", sample["pieces"])]


def _shards(source: Source) -> list[Block]:
    facts = source.manifest.facts
    rows: list[list[Cell]] = [["train", number(facts["tokens"])], ["held out", number(facts["held_out_tokens"])]]
    per_token = facts["held_out_bytes"] / max(facts["held_out_tokens"], 1)
    return [
        Table("Tokens", ["split", "tokens"], rows),
        Text(f"{per_token:.2f} bytes per token on the held-out text; vocabulary of {number(facts['vocab_size'])}."),
        *([Text(encoder["text"])] if (encoder := source.record_json("encoder.json")) else []),
        *_speeds(source),
    ]


def _speeds(source: Source) -> list[Block]:
    """How fast the rounds of a data stage were; earlier results count as items only."""
    rows: list[list[Cell]] = []
    for speed in source.record_json("speeds.json") or []:
        seconds, cpu_s = max(1e-6, speed["seconds"]), max(1e-6, speed["cpu_s"])
        rates: list[Cell] = ["", "", "", ""]
        if speed["documents"]:
            tokens = count(speed["tokens"] / seconds) if speed["tokens"] else ""
            each = f"{speed['text_bytes'] / cpu_s / 1e6:,.2f} MB/s"
            rates = [number(speed["documents"]), number(round(speed["documents"] / seconds)), tokens, each]
        rows.append([speed["round"], number(speed["items"]), f"{seconds:,.1f} s", *rates, size(speed["memory"])])
    head = ["round", "items", "time", "documents", "documents/s", "tokens/s", "text per core", "largest process"]
    return [Fold("Speed", [Table("Rounds on the first machine", head, rows, "lrrrrrrr")])] if rows else []


def _checkpoint(source: Source) -> list[Block]:
    facts = source.manifest.facts
    return [
        Text(
            f"{count(facts['parameters'])} parameters, step {number(facts['step'])}, "
            f"{count(facts['tokens_seen'])} tokens seen, validation loss {facts['validation_loss']:.4f} nats per token."
        ),
        *training_curves(source),
        *_anomalies(source),
        Fold("All facts", [_facts_table(source)]),
    ]


def _anomalies(source: Source) -> list[Block]:
    """Anomalous steps, if there were any."""
    rows: list[list[Cell]] = [
        [
            number(anomaly["step"]),
            anomaly["why"],
            words(anomaly["reaction"]),
            f"{anomaly['first']} to {anomaly['first'] + anomaly['count'] - 1}",
        ]
        for anomaly in source.record_lines("anomalies.jsonl")
    ]
    return [Table("Anomalous steps", ["step", "reason", "reaction", "samples"], rows, "rlll")] if rows else []


def _model(source: Source) -> list[Block]:
    facts = source.manifest.facts
    what = f"{facts['architecture']}, {count(facts['parameters'])} parameters, {facts['dtype']}."
    return [Text(what), *training_curves(source)]


def _audit(source: Source) -> list[Block]:
    """The evidence that the converted model equals the trained one."""
    audit = json.loads((source.directory / "audit.json").read_text())
    largest, bound, agreement = audit["logits_max_abs_diff"], audit["bound"], audit["argmax_agreement"]
    different = audit["config_differences"] or audit["weight_differences"] or audit.get("file_differences")
    met = largest <= bound and agreement == 1 and not different
    verdict = (
        f"{'✓ Same model' if met else '✗ Not the same model'}: {number(audit['parameters'])} parameters were compared "
        f"bit by bit, and config.json field by field. On {number(audit['tokens'])} held-out tokens the logits of the "
        f"checkpoint and of the safetensors differ by at most {largest:.2g} (allowed: {bound:.2g}; mean "
        f"{audit['logits_mean_abs_diff']:.2g}), and the most likely token agrees on {share(agreement)}."
    )
    parts = [(weight, part) for weight in audit["weights"] for part in weight["parts"]]
    rows: list[list[Cell]] = [
        [part["name"], weight["megatron"], " × ".join(map(str, part["shape"])), part["dtype"], part["digest"][:12]]
        for weight, part in parts[:MOST_ROWS]
    ]
    head = ["Hugging Face", "Megatron", "shape", "type", "digest"]
    mapping = Table("Every tensor and its sources", head, rows, "lllll")
    layers: list[list[Cell]] = [[str(layer), f"{diff:.2g}"] for layer, diff in enumerate(audit["layer_max_abs_diff"])]
    more = f", the first {MOST_ROWS} shown" if len(parts) > MOST_ROWS else ""
    return [
        Text(verdict, "good" if met else "bad"),
        Fold(
            f"Largest difference after each of {len(layers)} layers",
            [Table("Hidden states", ["layer", "difference"], layers, "rr")],
        ),
        Fold(f"Mapping of {len(parts)} tensors{more}", [mapping]),
    ]


def _evaluation(source: Source) -> list[Block]:
    results = [read_results(source.directory)]
    return [score_table(results), *measured_on(results), *set_table(results), *score_bars(results), *samples(results)]


def _published(source: Source) -> list[Block]:
    facts = source.manifest.facts
    card = source.directory / "README.md"
    blocks: list[Block] = [
        Text(f"{facts['registry_name']}, version {facts['registry_version']} in the model registry.")
    ]
    if card.exists():
        blocks.append(Fold("Model card", [Code(card.read_text())]))
    return blocks


def _promotion(source: Source) -> list[Block]:
    facts = source.manifest.facts
    aliases = f"champion is version {facts['champion'] or '–'}, previous {facts['previous'] or '–'}"
    return [Text(f"{facts['registry_name']}, version {facts['registry_version']}: {facts['outcome']}; {aliases}.")]


def _facts(source: Source) -> list[Block]:
    return [_facts_table(source), *training_curves(source)]


def _facts_table(source: Source) -> Table:
    return _pairs("Facts", {words(name): fact for name, fact in source.manifest.facts.items()})


def _made_with(source: Source) -> list[Block]:
    manifest = source.manifest
    parents: list[list[Cell]] = [
        [name, relation(manifest.kind, manifest.digest, name, manifest.parents), Mark(digest, "quiet")]
        for name, digest in sorted(manifest.parents.items())
    ]
    blocks: list[Block] = [_pairs("Spec", leaves(redact(manifest.spec))), _pairs("Versions", manifest.versions)]
    if parents:
        blocks.insert(0, Table("Inputs", ["input", "relation", "digest"], parents, "lll"))
    return [Fold("Spec, inputs and versions", blocks)]


def _pairs(caption: str, items: Mapping[str, Any]) -> Table:
    return Table(caption, ["name", "value"], [[name, value(item)] for name, item in items.items()], "ll")


# in the order of a report
KINDS: dict[str, Callable[[Source], list[Block]]] = {
    "corpus": _corpus,
    "rows": _rows,
    "reward_check": _reward_check,
    "tokenizer": _tokenizer,
    "tokenized_corpus": _shards,
    "megatron_checkpoint": _checkpoint,
    "conversion_audit": _audit,
    "hf_model": _model,
    "decision": decision,
    "endpoint": endpoint,
    "published_model": _published,
    "promotion": _promotion,
    "eval_report": _evaluation,
}
ORDER = tuple(KINDS)
