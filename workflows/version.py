"""python -m workflows.version: print a version for registering the launch plans, derived from code and recipe.

    pyflyte --config FILE register workflows --activate-launchplans --version "$(python -m workflows.version)"

The same commit and recipe give the same version, so registering twice changes nothing (Flyte never replaces a version).
Uncommitted changes give another one.
"""

import json

from infra.tracking.code import code_version
from tasks.manifest import text_digest
from workflows.continuous_recipe import ContinuousRecipe
from workflows.launch_plans import recipe


def version(of: ContinuousRecipe) -> str:
    """<commit>[-<changes>]-<recipe>, twelve hex digits each."""
    code = code_version()
    changes = [code["diff"][:12]] if "diff" in code else []
    digest = text_digest(json.dumps(of.model_dump(mode="json"), sort_keys=True))
    return "-".join([code["commit"][:12], *changes, digest[:12]])


if __name__ == "__main__":
    print(version(recipe()))
