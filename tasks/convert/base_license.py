"""The license of an existing model, as its model card states it."""

from pathlib import Path
from typing import Any

import yaml

CARD = "README.md"
FIELDS = ("license", "license_name", "license_link")  # of the card's front matter (huggingface.co/docs/hub/model-cards)
ADVICE = "no license is recorded. Correct it, or set publish.license"


def license_of(folder: Path) -> dict[str, str]:
    """The license fields of a model's card; empty if it has none."""
    card, _ = _front_matter(folder)
    return {name: card[name] for name in FIELDS if isinstance(card.get(name), str) and card[name].strip()}


def license_notices(folder: Path) -> list[str]:
    """What the card says of a license and `license_of` does not read."""
    card, problem = _front_matter(folder)
    if problem:
        return [f"{CARD}: its front matter cannot be read ({problem}), so {ADVICE}"]
    odd = [name for name in FIELDS if card.get(name) is not None and not isinstance(card[name], str)]
    return [f"{CARD}: {name} is {card[name]!r:.80}, not one name, so {ADVICE}" for name in odd]


def _front_matter(folder: Path) -> tuple[dict[str, Any], str]:
    """The fields at the beginning of the card, between two lines `---`, and why they cannot be read."""
    try:
        text = (folder / CARD).read_text(encoding="utf-8-sig", errors="replace").lstrip()
    except OSError:
        return {}, ""
    first, *lines = [line.rstrip() for line in text.split("\n")]
    if first != "---":
        return {}, ""
    if "---" not in lines:
        return {}, "it has no end, a line ---"
    try:
        text = "\n".join(lines[: lines.index("---")])
        root = yaml.compose(text, yaml.SafeLoader)
        names = [key.value for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
        if twice := next((name for name in FIELDS if names.count(name) > 1), None):
            return {}, f"{twice} occurs twice"
        card = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, " ".join(str(error).split())[:200]
    return (card, "") if isinstance(card, dict) else ({}, "it is no mapping" if card is not None else "")
