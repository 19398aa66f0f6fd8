"""The page of a published model."""

from baton.tasks.pages.blocks import Block, Code, Fold, Text
from baton.tasks.pages.source import Source


def published_model(source: Source) -> list[Block]:
    facts = source.manifest.facts
    card = source.directory / "README.md"
    why = f": {source.manifest.fields['why']}" if source.manifest.fields.get("why") else ""
    blocks: list[Block] = [
        Text(f"{facts['registry_name']}, version {facts['registry_version']} in the model registry{why}.")
    ]
    if facts.get("hub"):
        blocks.append(Text(f"{facts['hub']} on the Hugging Face hub, commit {facts['hub_commit']}."))
    if card.exists():
        blocks.append(Fold("Model card", [Code(card.read_text())]))
    return blocks
