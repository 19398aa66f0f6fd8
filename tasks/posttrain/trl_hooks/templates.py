"""Read TRL's chat templates from its package, since TRL's own function imports torch."""

import importlib.util
from functools import cache
from pathlib import Path


@cache
def trl_templates() -> dict[str, tuple[str, str]]:
    """Return TRL's templates by name, each as (the models' template, the same with generation marks); empty if TRL is
    not installed."""
    spec = importlib.util.find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    return {
        path.name.removesuffix("_training.jinja"): (
            path.with_name(path.name.replace("_training", "")).read_text(),
            path.read_text(),
        )
        for path in sorted(folder.glob("*_training.jinja"))
    }
