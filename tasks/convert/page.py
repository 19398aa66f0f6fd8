"""The lineage pages of a Hugging Face model and of the audit of its conversion."""

import json

from baton.infra.text import count, number, share
from baton.tasks.pages.blocks import Block, Cell, Fold, Table, Text
from baton.tasks.pages.source import Source
from baton.tasks.pages.training import training_curves

MOST_TENSORS = 400  # maximum number of listed tensors


def model(source: Source) -> list[Block]:
    facts = source.manifest.fields
    what = f"{facts['architecture']}, {count(facts['parameters'])} parameters, {facts['dtype']}."
    return [Text(what), *training_curves(source)]


def audit(source: Source) -> list[Block]:
    """Return the evidence that the converted model equals the trained one."""
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
        for weight, part in parts[:MOST_TENSORS]
    ]
    head = ["Hugging Face", "Megatron", "shape", "type", "digest"]
    mapping = Table("Every tensor and its sources", head, rows, "lllll")
    layers: list[list[Cell]] = [[str(layer), f"{diff:.2g}"] for layer, diff in enumerate(audit["layer_max_abs_diff"])]
    more = f", the first {MOST_TENSORS} shown" if len(parts) > MOST_TENSORS else ""
    return [
        Text(verdict, "good" if met else "bad"),
        Fold(
            f"Largest difference after each of {len(layers)} layers",
            [Table("Hidden states", ["layer", "difference"], layers, "rr")],
        ),
        Fold(f"Mapping of {len(parts)} tensors{more}", [mapping]),
    ]
