"""Read the license of an existing model from its model card."""

from pathlib import Path
from typing import Any

import yaml

CARD = "README.md"
FIELDS = ("license", "license_name", "license_link")  # in the card's front matter (huggingface.co/docs/hub/model-cards)
ADVICE = "no license is recorded. Correct it, or set publish.license"


def license_of(folder: Path) -> dict[str, str]:
    """Return the license fields of a model's card; empty if it has none."""
    card, _ = _front_matter(folder)
    return {name: card[name] for name in FIELDS if isinstance(card.get(name), str) and card[name].strip()}


def license_notices(folder: Path) -> list[str]:
    """Return notices about a license in the card that `license_of` cannot read."""
    card, problem = _front_matter(folder)
    if problem:
        return [f"{CARD}: its front matter cannot be read ({problem}), so {ADVICE}"]
    odd = [name for name in FIELDS if card.get(name) is not None and not isinstance(card[name], str)]
    return [f"{CARD}: {name} is {card[name]!r:.80}, not one name, so {ADVICE}" for name in odd]


def _front_matter(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the fields at the beginning of the card, between two lines `---`, and the reason if they cannot be
    read."""
    try:
        text = (folder / CARD).read_text(encoding="utf-8-sig", errors="replace").lstrip()
    except OSError:
        return {}, ""
    first, *lines = [line.rstrip() for line in text.split("\n")]
    if first != "---":
        return {}, ""
    if "---" not in lines:
        return {}, "it has no final line ---"
    try:
        text = "\n".join(lines[: lines.index("---")])
        root = yaml.compose(text, yaml.SafeLoader)
        names = [key.value for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
        if twice := next((name for name in FIELDS if names.count(name) > 1), None):
            return {}, f"{twice} occurs twice"
        card = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, " ".join(str(error).split())[:200]
    return (card, "") if isinstance(card, dict) else ({}, "it is not a mapping" if card is not None else "")
