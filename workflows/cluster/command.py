"""`baton cluster check` checks a Flyte cluster before Baton's first run on it: admin, storage, images,
connector, and from inside a pod the storage, MLflow and resource limits. Exit code 1 if a check failed."""

from types import SimpleNamespace

import click

MARKS = {"ok": "✓", "failed": "✗", "cannot be tried": "?"}


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option(
    "--config",
    envvar="FLYTECTL_CONFIG",
    type=click.Path(exists=True, dir_okay=False),
    help="Flyte's config file, with Baton's images: section.",
)
@click.option("--project", default="flytesnacks", show_default=True)
@click.option("--domain", default="development", show_default=True)
@click.option("--recipe", help="Check the images and the largest pod of this recipe's run; default: of any.")
@click.option("--connector", help="The connector's address from here, HOST:PORT.")
@click.option(
    "--patience",
    default=600,
    show_default=True,
    type=click.IntRange(1, 86_400),
    help="Seconds to wait for the pod, with its image's pull.",
)
def check(
    config: str | None, project: str, domain: str, recipe: str | None, connector: str | None, patience: int
) -> None:
    """Print a line for each check."""
    from baton.workflows.checks.run_context import for_a_cluster
    from baton.workflows.cluster.checks import checks  # imports flytekit: not for --help
    from baton.workflows.cluster.remote import ANY_STAGE, accepted, pass_on, stage_pods
    from baton.workflows.continuous_training.recipe import recipe_of
    from baton.workflows.recipe.text import load

    pods = ANY_STAGE
    run = SimpleNamespace(config_file=config, envvars={})
    pass_on(run)  # what `pyflyte run` passes on
    if recipe:
        with for_a_cluster():
            pods = stage_pods(load(recipe, recipe_of, check=lambda found: accepted(found, run.envvars)))
    failed = False
    for result in checks(config, project, domain, connector, patience, pods, run.envvars):
        click.echo(f"{MARKS[result.state]} {result.name:<16}  {result.state}: {result.message}")
        failed |= result.state == "failed"
    if failed:
        raise SystemExit(1)
