"""Convert checkpoints and audit conversions from the command line:

    baton convert export MEGATRON HUGGING_FACE
    baton convert import HUGGING_FACE MEGATRON
    baton convert audit ONE OTHER

With `--preflight`, export and import only print the files that they would read and write, and any problems. The exit
code is 0, or 1 if a conversion is impossible or an audit finds a difference, or 2 for usage errors.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from baton.infra.options import NewFile, Number
from baton.infra.paths import quiet
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import MANIFEST, ArtifactError, verify

if TYPE_CHECKING:
    from baton.tasks.convert.megatron_model import MegatronModel
    from baton.tasks.convert.preflight import Preflight

DTYPES = click.Choice(["bf16", "fp16", "fp32"])
FOLDER = click.Path(path_type=Path)
WORKING = click.Path(exists=True, file_okay=False, path_type=Path)
SEQUENCE = 128  # an audit's sequence length, tokens


@click.group()
def main() -> None:
    """Convert between Megatron's torch_dist checkpoints and Hugging Face's safetensors."""
    quiet()
    os.environ["HF_HUB_OFFLINE"] = "1"  # all inputs are local
    for stream in (sys.stdout, sys.stderr):  # names of files and tensors may have any characters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


_preflight = click.option(
    "--preflight",
    is_flag=True,
    help="Print the files to read and write, and any problems, but write nothing. Exit code 1 if there is a problem.",
)
_no_verify = click.option(
    "--no-verify", is_flag=True, help="Do not check the source's files against its manifest.json, if it has one."
)


@main.command("export")
@click.argument("source", type=WORKING)
@click.argument("target", type=FOLDER)
@click.option("--config", type=FOLDER, help="config.json, or a folder with one, for a checkpoint made elsewhere.")
@click.option("--tokenizer", type=WORKING, help="Folder with tokenizer files to copy next to the weights.")
@click.option("--dtype", type=DTYPES, help="Type of the exported weights; default: unchanged.")
@click.option("--max-shard-gb", type=Number(0, 1e9, min_open=True), default=5.0, show_default=True)
@click.option("--replace", is_flag=True, help="Replace an existing TARGET.")
@_preflight
@_no_verify
def export_command(
    source: Path,
    target: Path,
    config: Path | None,
    tokenizer: Path | None,
    dtype: str | None,
    max_shard_gb: float,
    replace: bool,
    preflight: bool,
    no_verify: bool,
) -> None:
    """Export the torch_dist checkpoint SOURCE to a Hugging Face folder TARGET."""
    from baton.tasks.convert.export_model import ExportOptions, export_model, export_notes
    from baton.tasks.convert.megatron_model import open_megatron
    from baton.tasks.convert.preflight import export_preflight
    from baton.tasks.convert.target import check_target, normalized

    options = ExportOptions(dtype, int(max_shard_gb * 1e9), replace)
    inputs = [path for path in (source, config, tokenizer) if path]
    checks = [lambda: check_target(normalized(target), replace, inputs), lambda: _verify(source, no_verify)]

    def open_model() -> "MegatronModel":
        return _with_tokens(open_megatron(source, config), tokenizer)

    if preflight:
        _report(export_preflight(checks, open_model, target, options, tokenizer))
    with _one_line_errors():
        for check in checks:
            check()
        opened = open_model()
        _notes(export_notes(opened, options, tokenizer))
        with _bar("export") as progress:
            account = export_model(opened, target, options, tokenizer, progress)
    click.echo(f"{target}: {sum(len(entry.parts) for entry in account)} tensors of {len(account)} weights")


@main.command("import")
@click.argument("source", type=WORKING)
@click.argument("target", type=FOLDER)
@click.option("--dtype", type=DTYPES, help="Type of the imported weights; default: unchanged.")
@click.option("--replace", is_flag=True, help="Replace an existing TARGET.")
@_preflight
@_no_verify
def import_command(
    source: Path, target: Path, dtype: str | None, replace: bool, preflight: bool, no_verify: bool
) -> None:
    """Import the Hugging Face folder SOURCE to a checkpoint TARGET that Megatron loads under any layout."""
    from baton.tasks.convert.import_model import ImportOptions, import_model, import_notes, open_hugging_face
    from baton.tasks.convert.preflight import import_preflight
    from baton.tasks.convert.target import check_target, normalized

    options = ImportOptions(dtype, replace)
    checks = [lambda: check_target(normalized(target), replace, [source]), lambda: _verify(source, no_verify)]
    if preflight:
        _report(import_preflight(checks, partial(open_hugging_face, source), target, options))
    with _one_line_errors():
        for check in checks:
            check()
        opened = open_hugging_face(source)
        _notes(import_notes(opened, options))
        odd: set[str] = set()
        with _bar("import") as progress:
            account = import_model(opened, target, options, progress, odd.add)
        _notes([f"{name} has NaN or infinite values" for name in sorted(odd)])
    click.echo(f"{target}: {len(account)} weights of {sum(len(entry.parts) for entry in account)} tensors")


@main.command("audit")
@click.argument("one", type=WORKING)
@click.argument("other", type=WORKING)
@click.option("--config", type=FOLDER, help="config.json, or a folder with one, for a checkpoint made elsewhere.")
@click.option("--tokens", type=click.IntRange(8), default=512, show_default=True, help="Tokens to run both models on.")
@click.option("--bound", type=Number(0), default=1e-4, show_default=True, help="Largest logit difference.")
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text to run on; default: random tokens.",
)
@click.option("--tokenizer", type=WORKING, help="The --tokenizer that was passed to `export`, if any.")
@click.option("--json", "to", type=NewFile(), help="File to write the full comparison to.")
@_no_verify
def audit_command(
    one: Path,
    other: Path,
    config: Path | None,
    tokens: int,
    bound: float,
    text: Path | None,
    tokenizer: Path | None,
    to: Path | None,
    no_verify: bool,
) -> None:
    """Check that a Megatron checkpoint and a Hugging Face folder, in either order, are the same model."""
    from transformers.utils.logging import disable_progress_bar

    from baton.tasks.convert.audit import audit
    from baton.tasks.convert.import_model import open_hugging_face
    from baton.tasks.convert.megatron_model import is_megatron, open_megatron

    disable_progress_bar()
    megatron, hugging_face = (one, other) if is_megatron(one) else (other, one)
    with _one_line_errors():
        _verify(one, no_verify)
        _verify(other, no_verify)
        checkpoint, model = open_megatron(megatron, config), open_hugging_face(hugging_face)
        if checkpoint.beside is None:
            checkpoint = _with_tokens(checkpoint, tokenizer)
        with _counts() as progress:
            batch = _tokens(tokens, checkpoint.architecture.vocab, text, hugging_face)
            result = audit(checkpoint, model, batch, bound, progress, tokenizer)
        if to:
            to.write_text(json.dumps(asdict(result), indent=1))
    click.echo(result.verdict())
    sys.exit(1 if result.problems() else 0)


def _with_tokens(model: "MegatronModel", tokenizer: Path | None) -> "MegatronModel":
    """Set eos_token_id and pad_token_id from the tokenizer where the config has none."""
    if tokenizer is None or model.fields.get("eos_token_id") is not None:
        return model
    from baton.tasks.convert.export_model import check_beside
    from baton.tasks.models.tokenizers import load

    check_beside(tokenizer)
    loaded = load(tokenizer)
    ids = {"eos_token_id": loaded.eos_token_id, "pad_token_id": loaded.pad_token_id}
    return replace(model, fields=model.fields | ids)


def _tokens(count: int, vocabulary: int, text: Path | None, model: Path) -> Any:
    """Return token ids, (sequences, length), of a text by the model's tokenizer, or random ones with a fixed seed."""
    import torch

    if text is None:
        flat = torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(0))
    else:
        from baton.tasks.models.tokenizers import beginning, plain

        tokenizer = plain(model)
        content = tokenizer.encode(text.read_text(encoding="utf-8", errors="replace"), add_special_tokens=False).ids
        flat = torch.tensor([*beginning(tokenizer), *content][:count])
        if not len(flat):
            raise StageError(f"{text}: has no tokens; pass a text with tokens, or omit --text")
    length = min(SEQUENCE, len(flat))
    return flat[: len(flat) // length * length].view(-1, length)


def _verify(folder: Path, no_verify: bool) -> None:
    if (folder / MANIFEST).exists() and not no_verify:
        verify(folder)


def _notes(notes: list[str]) -> None:
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _report(preflight: "Preflight") -> NoReturn:
    for line in preflight.lines:
        click.echo(line)
    _notes(preflight.notes)
    for problem in preflight.problems:
        click.echo(f"error: {problem}", err=True)
    sys.exit(1 if preflight.problems else 0)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (StageError, ArtifactError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    columns = (BarColumn(bar_width=28), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn(title), *columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _counts() -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description:<8}"), BarColumn(bar_width=28), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks = {what: bars.add_task(what, total=None) for what in ("weights", "layers")}
        yield lambda what, done, total: bars.update(tasks[what], completed=done, total=total)
