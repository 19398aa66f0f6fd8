"""The pages of a corpus, a tokenizer and a tokenized corpus."""

from baton.infra.text import count, number, share, size, words
from baton.tasks.pages.blocks import Block, Cell, Code, Fold, Pieces, Table, Text
from baton.tasks.pages.source import Source

MOST_BROKEN = 20  # files that are named
MOST_CHANGES = 400  # that are listed


def corpus(source: Source) -> list[Block]:
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
    """The effect of each step of the curation on each source, and samples of the dropped documents."""
    curation = source.record_json("curation.json")
    if curation is None:
        return []
    counts = [(step, name, tally) for step, sources in curation["steps"].items() for name, tally in sources.items()]
    rows: list[list[Cell]] = []
    excerpts: list[Block] = []
    for step, name, tally in counts:
        reasons = sorted(tally["reasons"].items(), key=lambda item: (-item[1], item[0]))
        dropped = share(tally["dropped"] / max(1, tally["documents"]))
        why = ", ".join(f"{reason} {number(times)}" for reason, times in reasons)
        sizes = [number(tally["documents"]), number(tally["dropped"]), dropped, size(tally["dropped_bytes"])]
        rows.append([step, name, *sizes, number(tally["changed"]), why])
        excerpts += [
            Code(sample["text"], f"{step}: {reason}, {sample['source']}")
            for reason, _ in reasons
            for sample in tally["samples"][reason]
        ]
    head = ["step", "source", "documents", "dropped", "share", "text", "changed", "reasons"]
    blocks: list[Block] = [Table("Curation", head, rows, "llrrrrrl")]
    return [*blocks, Fold("Dropped documents (excerpts)", excerpts)] if excerpts else blocks


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
        more = f", the first {MOST_CHANGES} shown" if len(rows) > MOST_CHANGES else ""
        listed = Table("Changes", ["document", "change", ""], rows[:MOST_CHANGES], "lll")
        blocks.append(Fold(f"{number(len(rows))} changes{more}", [listed]))
    return blocks


def tokenizer(source: Source) -> list[Block]:
    facts = source.manifest.facts
    sample = source.record_json("sample.json")
    summary = f"Vocabulary of {number(facts['vocab_size'])}."
    if sample is None:
        return [Text(summary)]
    summary += f" {sample['bytes_per_token']:.2f} bytes per token on held-out text."
    return [Text(summary), Pieces("A held-out text in its tokens (⏎ is a newline)", sample["pieces"])]


def tokenized_corpus(source: Source) -> list[Block]:
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
    """The speed of a data stage's rounds; earlier results count only as items."""
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
