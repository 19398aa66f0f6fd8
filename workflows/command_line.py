"""`baton COMMAND`, from any folder. Each command is a click command in the package of what it does, imported when it is
called, so that `baton --help` answers at once."""

from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name

import click

from baton.infra.project import apply

# name -> the command, and its line in --help
COMMANDS = {
    "init": ("baton.workflows.init:main", "Write a small project that runs as it is."),
    "plan": ("baton.workflows.plan.command:main", "Print what a recipe would run, need and cost."),
    "run": ("baton.workflows.run:main", "Run a recipe, as `pyflyte run` does."),
    "describe": ("baton.workflows.describe:main", "Print the fields of a recipe."),
    "runs": ("baton.infra.lineage.terminal.runs:main", "List the runs: recipe, person, note, state."),
    "show": ("baton.infra.lineage.terminal.show:main", "Print what is known of a run, an artifact or a model."),
    "compare": ("baton.infra.lineage.terminal.compare:main", "Print the differences of two runs or models."),
    "note": ("baton.infra.tracking.note:main", "Give a run a note and tags."),
    "ui": ("baton.infra.lineage.__main__:main", "Serve the lineage pages and MLflow's."),
    "serve": ("baton.tasks.serve.__main__:main", "Serve a model with OpenAI's API."),
    "chat": ("baton.tasks.serve.chat.command:main", "Talk to a model, or to two side by side."),
    "export": ("baton.workflows.export:main", "Copy a model or rows to a folder or to the Hugging Face hub."),
    "convert": ("baton.tasks.convert.command:main", "Convert checkpoints and models by hand."),
    "gc": ("baton.workflows.gc.command:main", "Show what takes space, and remove what nothing needs."),
    "schedule": ("baton.workflows.schedule:main", "Run the launch plans without a Flyte cluster."),
    "rollback": ("baton.workflows.rollback:main", "Make an earlier champion serve again."),
    "tracking": ("baton.infra.tracking.__main__:main", "List or deliver what the tracking server lacks."),
    "cluster": ("baton.workflows.cluster.command:main", "Check a Flyte cluster before the first run on it."),
    "images": ("baton.images.build:main", "Build and push the images of pods."),
    "version": ("baton.workflows.version:main", "Print the version to register launch plans with."),
    "gpu-check": ("baton.workflows.gpu_check.command:main", "Try and time every stage on this machine's GPU."),
}


class Commands(click.Group):
    """The commands of the table."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = resolve_name(COMMANDS[name][0])
        return command

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(context, words)
        return words[0] if name else name, command, rest  # a command's own name is that of its function

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _version() -> str:
    try:
        return version("baton")
    except PackageNotFoundError:
        return "of a clone that is not installed"


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), message="baton %(version)s")
def main() -> None:
    """From raw text to a served, RL-tuned language model."""
    apply()
