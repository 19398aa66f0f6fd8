"""The license of an existing model, as its model card states it."""

from pathlib import Path

import yaml

CARD = "README.md"
FIELDS = ("license", "license_name", "license_link")  # of the card's front matter (huggingface.co/docs/hub/model-cards)


def license_of(folder: Path) -> dict[str, str]:
    """The license fields of a model's card; empty if it has none."""
    try:
        _, front_matter, *_ = (folder / CARD).read_text(encoding="utf-8", errors="replace").split("---\n", 2)
        card = yaml.safe_load(front_matter)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    if not isinstance(card, dict):
        return {}
    return {name: str(card[name]) for name in FIELDS if isinstance(card.get(name), str)}
