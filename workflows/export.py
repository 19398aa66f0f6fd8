"""Give a model, or a set of rows, to somebody: in a folder, or on the Hugging Face hub.

baton export MODEL DIR                           a new folder, complete or not at all
baton export MODEL hub:my-team/my-model          a repository, private unless --public
baton export ROWS hub:datasets/my-team/my-rows   a set of rows, such as rows-chat

MODEL is the name of a published model, the first letters of a digest, or a folder.
"""

from functools import partial
from pathlib import Path

import click

from baton.infra.errors import UserError
from baton.infra.options import Folder
from baton.infra.paths import quiet
from baton.infra.storage.hub import HUB, Consent, Repository
from baton.infra.text import escaped
from baton.tasks.core.export import write_folder
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError


@click.command(help=__doc__.replace("\n\n", "\n\n\b\n", 1))
@click.argument("model")
@click.argument("target")
@click.option("--public", is_flag=True, help="Create a public repository, or write to one.")
@click.option("--overwrite", is_flag=True, help="Replace all files of a repository that Baton did not write.")
@click.option("--base", type=Folder(), help="Base of the adapter in MODEL, if it is not where it was trained.")
def main(model: str, target: str, public: bool, overwrite: bool, base: Path | None) -> None:
    if (public or overwrite) and not target.startswith(HUB):
        raise click.UsageError(f"--public and --overwrite are about a repository, {HUB}…, and {target!r} is a folder")
    quiet()
    try:
        click.echo(_export(model, target, Consent(public, overwrite, "--public", "--overwrite"), base))
    except (StageError, ArtifactError) as error:
        raise UserError(str(error)) from error
    except OSError as error:  # of the disk
        place = escaped(str(error.filename2 or error.filename or target))
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"{place}: {reason}. Fix that, or choose another folder, and run the same command again"
        ) from error


def _export(named: str, target: str, consent: Consent, base: Path | None) -> str:
    from baton.tasks.models.find import find_model
    from baton.tasks.publish import export as models
    from baton.tasks.rows import export as rows

    repository = Repository.at(target) if target.startswith(HUB) else None
    found = rows.find_rows(named)
    source = found or find_model(named)
    if repository is None:
        fill = partial(rows.fill, source) if found else partial(models.fill, source, base=base)
        is_new = write_folder(Path(target).absolute(), fill)
        return f"{source}: {'exported to' if is_new else 'is already in'} {escaped(target)}"
    kind, fix = ("dataset", f"rows go to {HUB}datasets/") if found else ("model", f"a model goes to {HUB}")
    if repository.kind != kind:
        raise UserError(f"{repository}: {fix}{repository.name}")
    pushed = rows.push(source, repository, consent) if found else models.push(source, repository, consent, base)
    done = "pushed to" if pushed.is_new else "is already in"
    visibility = "private" if pushed.private else "public"
    return f"{source}: {done} {pushed.url} ({visibility}), commit {pushed.commit}"
