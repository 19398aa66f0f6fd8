"""Print a version for registering the launch plans, derived from all that goes into what is registered: the code, the
recipe, the images that Flyte's configuration FILE names, BATON_SECRETS, and the same options --env.

    pyflyte --config FILE register workflows --activate-launchplans --version "$(baton version FILE)"

The same of these gives the same version, so registering twice changes nothing (Flyte never replaces a version, and
refuses another content under a known one).
"""

import json
from collections.abc import Mapping, Sequence

import click

from baton.infra.pod_spec import secrets_of_all
from baton.infra.tracking.code import code_version
from baton.tasks.core.manifest import text_digest
from baton.workflows.checks.run_context import for_a_cluster
from baton.workflows.continuous_training.recipe import ContinuousRecipe


def version(recipe: ContinuousRecipe, images: Mapping[str, str] = {}, environment: Sequence[str] = ()) -> str:
    """<commit>[-<changes>]-<the rest>, twelve hex digits each."""
    code = code_version()
    changes = [code["diff"][:12]] if "diff" in code else []
    rest = [recipe.model_dump(mode="json"), dict(images), sorted(secrets_of_all()), sorted(environment)]
    return "-".join([code["commit"][:12], *changes, text_digest(json.dumps(rest, sort_keys=True))[:12]])


@click.command(help=__doc__)
@click.argument("config", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="As for `pyflyte register`.")
def main(config: str | None, environment: Sequence[str]) -> None:
    """`config`: by default Flyte's own choice. Raises RecipeError."""
    from flytekit.configuration import ImageConfig

    with for_a_cluster():
        from baton.workflows.launch_plans import recipe  # read when it is imported

        named = ImageConfig.auto(config_file=config).images or []
        click.echo(version(recipe(), {image.name: image.full for image in named}, environment))
