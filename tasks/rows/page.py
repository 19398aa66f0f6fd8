"""The page of rows."""

import json

from baton.infra.text import number
from baton.tasks.pages.blocks import Block, Cell, Code, Fold, Table, Text
from baton.tasks.pages.source import Source


def rows(source: Source) -> list[Block]:
    facts = source.manifest.facts
    split: list[list[Cell]] = [["train", number(facts["rows"])], ["held out", number(facts["held_out_rows"])]]
    left_out = ", ".join(f"{number(facts[name])} {name}" for name in ("duplicates", "faulty", "contaminated"))
    columns = ", ".join(facts["columns"])
    blocks: list[Block] = [Table(f"Rows: {facts['row_kind']}", ["split", "rows"], split)]
    blocks.append(Text(f"Format: {facts['format']}; columns {columns}. Left out: {left_out}.", "quiet"))
    rows = source.record_json("samples.json") or []
    shown: list[Block] = [Code(json.dumps(row, ensure_ascii=False, indent=1)) for row in rows]
    return [*blocks, Fold("Sample rows", shown)] if shown else blocks
