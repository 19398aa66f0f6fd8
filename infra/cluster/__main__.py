"""`python -m infra.cluster check` looks at a Flyte cluster before Baton's first run there: its admin, its storage, its
images, its connector, and from inside a pod the storage, MLflow and the limits. Exit code 1 when something failed."""

import click

MARKS = {"ok": "✓", "failed": "✗", "cannot be tried": "?"}


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--config", envvar="FLYTECTL_CONFIG", help="Flyte's config file, with Baton's images: section.")
@click.option("--project", default="flytesnacks", show_default=True)
@click.option("--domain", default="development", show_default=True)
@click.option("--connector", help="Where the connector can be reached from here, HOST:PORT.")
@click.option("--patience", default=600, show_default=True, help="Seconds for the pod, its image's download included.")
def check(config: str | None, project: str, domain: str, connector: str | None, patience: int) -> None:
    """Print a line for each thing that was looked at."""
    from infra.cluster.checks import checks  # flytekit: not on the path of --help

    failed = False
    for each in checks(config, project, domain, connector, patience):
        click.echo(f"{MARKS[each.state]} {each.name:<16}  {each.state}: {each.words}")
        failed |= each.state == "failed"
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
