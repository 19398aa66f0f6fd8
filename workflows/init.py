"""Write a small project: a recipe that runs as it is, its rows and reward, and a README with the commands.

    baton init rl          pretraining on text of your own making, SFT and GRPO with your reward
    baton init chat        SFT and DPO of a tiny model on chats
    baton init pretrain    a tokenizer and a model from text
    baton init eval        an existing model, evaluated on your rows

The projects of all kinds are trained within minutes on two cores. Nothing that exists is overwritten.
"""

import shutil
from pathlib import Path

import click

from baton import HERE
from baton.infra.commands import command
from baton.infra.errors import UserError

STARTERS = HERE / "workflows" / "starters"
KINDS = ("rl", "chat", "pretrain", "eval")


@click.command(help=__doc__)
@click.argument("kind", type=click.Choice(KINDS), default="rl")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
def main(kind: str, folder: Path) -> None:
    starter = STARTERS / kind
    files = [file.relative_to(starter) for file in sorted(starter.rglob("*")) if file.is_file()]
    targets = {file: folder / (f".{file.name[4:]}" if file.name.startswith("dot-") else file) for file in files}
    if there := [str(target) for target in targets.values() if target.exists()]:
        raise UserError(f"{', '.join(there)}: exists already; name an empty folder: baton init {kind} FOLDER")
    try:
        for file, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(starter / file, target)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}. Name a folder that can be written to") from error
    for target in targets.values():
        click.echo(target)
    where = "" if folder == Path() else f"cd {folder} && "
    click.echo(f"\nnext: {where}{command('baton run recipe.yaml')}")
