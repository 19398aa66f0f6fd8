"""Conversion for people:

    python -m tasks.convert export MEGATRON HUGGING_FACE
    python -m tasks.convert import HUGGING_FACE MEGATRON
    python -m tasks.convert audit ONE OTHER

`--preflight` with the first two prints what would be read and written, and the problems that can be known, and writes
nothing. Exit code 0; 1 when it cannot be done, or an audit finds a difference; 2 for wrong arguments.
"""

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

from infra.home import quiet
from tasks.job import StageError
from tasks.manifest import MANIFEST, ArtifactError, verify

if TYPE_CHECKING:
    from tasks.convert.megatron_model import MegatronModel
    from tasks.convert.preflight import Preflight

DTYPES = click.Choice(["bf16", "fp16", "fp32"])
FOLDER = click.Path(path_type=Path)
WORKING = click.Path(exists=True, file_okay=False, path_type=Path)
SEQUENCE = 128  # tokens of an audit that run as one text


@click.group()
def main() -> None:
    """Between Megatron's torch_dist checkpoints and Hugging Face's safetensors, in both directions."""
    quiet()
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here is fetched


def _preflight(function: Callable[..., Any]) -> Callable[..., Any]:
    words = "Print what would be read and written, and its problems; write nothing. Exit code 1 if there is a problem."
    return click.option("--preflight", is_flag=True, help=words)(function)


def _verified(function: Callable[..., Any]) -> Callable[..., Any]:
    words = "Do not check the source's files against its manifest.json, where there is one."
    return click.option("--no-verify", is_flag=True, help=words)(function)


@main.command("export")
@click.argument("source", type=WORKING)
@click.argument("target", type=FOLDER)
@click.option("--config", type=FOLDER, help="config.json, or a folder with one, of a checkpoint made elsewhere.")
@click.option("--tokenizer", type=WORKING, help="Folder whose files are put beside the weights.")
@click.option("--dtype", type=DTYPES, help="Type of the weights; default: as they are.")
@click.option("--max-shard-gb", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True)
@click.option("--replace", is_flag=True, help="Replace what is at TARGET.")
@_preflight
@_verified
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
    """Megatron's torch_dist checkpoint SOURCE to a Hugging Face folder TARGET."""
    from tasks.convert.export_model import ExportOptions, export_model, export_notes
    from tasks.convert.megatron_model import open_megatron
    from tasks.convert.preflight import export_preflight
    from tasks.convert.target import check_target, normalized

    options = ExportOptions(dtype, int(max_shard_gb * 1e9), replace)
    inputs = [given for given in (source, config, tokenizer) if given]
    checks = [lambda: check_target(normalized(target), replace, inputs), lambda: _verify(source, no_verify)]

    def opening() -> "MegatronModel":
        return _with_tokens(open_megatron(source, config), tokenizer)

    if preflight:
        _report(export_preflight(checks, opening, target, options, tokenizer))
    with _errors_in_a_line():
        for check in checks:
            check()
        opened = opening()
        _notes(export_notes(opened, options))
        with _bar("export") as progress:
            account = export_model(opened, target, options, tokenizer, progress)
    click.echo(f"{target}: {sum(len(entry.parts) for entry in account)} tensors of {len(account)} weights")


@main.command("import")
@click.argument("source", type=WORKING)
@click.argument("target", type=FOLDER)
@click.option("--dtype", type=DTYPES, help="Type of the weights; default: as they are.")
@click.option("--replace", is_flag=True, help="Replace what is at TARGET.")
@_preflight
@_verified
def import_command(
    source: Path, target: Path, dtype: str | None, replace: bool, preflight: bool, no_verify: bool
) -> None:
    """Hugging Face folder SOURCE to a checkpoint TARGET that Megatron loads under any layout."""
    from tasks.convert.import_model import ImportOptions, import_model, import_notes, open_hugging_face
    from tasks.convert.preflight import import_preflight
    from tasks.convert.target import check_target, normalized

    options = ImportOptions(dtype, replace)
    checks = [lambda: check_target(normalized(target), replace, [source]), lambda: _verify(source, no_verify)]
    if preflight:
        _report(import_preflight(checks, partial(open_hugging_face, source), target, options))
    with _errors_in_a_line():
        for check in checks:
            check()
        opened = open_hugging_face(source)
        _notes(import_notes(opened, options))
        with _bar("import") as progress:
            account = import_model(opened, target, options, progress)
    click.echo(f"{target}: {len(account)} weights of {sum(len(entry.parts) for entry in account)} tensors")


@main.command("audit")
@click.argument("one", type=WORKING)
@click.argument("other", type=WORKING)
@click.option("--config", type=FOLDER, help="config.json, or a folder with one, of a checkpoint made elsewhere.")
@click.option("--tokens", type=click.IntRange(8), default=512, show_default=True, help="On which both models run.")
@click.option("--bound", type=click.FloatRange(0), default=1e-4, show_default=True, help="Of a logit's difference.")
@click.option("--text", type=click.Path(exists=True, path_type=Path), help="A text to run on; default: random tokens.")
@click.option("--tokenizer", type=WORKING, help="The folder that `export` was given, if any.")
@click.option("--json", "to", type=FOLDER, help="A file for all that was compared.")
@_verified
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
    """Are a Megatron checkpoint and a Hugging Face folder, in either order, the same model?"""
    from transformers.utils.logging import disable_progress_bar

    from tasks.convert.audit import audit
    from tasks.convert.import_model import open_hugging_face
    from tasks.convert.megatron_model import is_megatron, open_megatron

    disable_progress_bar()
    megatron, hugging_face = (one, other) if is_megatron(one) else (other, one)
    with _errors_in_a_line():
        _verify(one, no_verify)
        _verify(other, no_verify)
        ours, theirs = open_megatron(megatron, config), open_hugging_face(hugging_face)
        if ours.beside is None:
            ours = _with_tokens(ours, tokenizer)
        with _counts() as progress:
            words = _tokens(tokens, ours.architecture.vocab, text, hugging_face)
            found = audit(ours, theirs, words, bound, progress, tokenizer)
    if to:
        to.write_text(json.dumps(asdict(found), indent=1))
    click.echo(found.verdict())
    sys.exit(1 if found.problems() else 0)


def _with_tokens(model: "MegatronModel", tokenizer: Path | None) -> "MegatronModel":
    """A model that does not know where a text ends learns it from its tokenizer."""
    if tokenizer is None or model.fields.get("eos_token_id") is not None:
        return model
    from transformers import AutoTokenizer

    from tasks.convert.errors import ConversionError
    from tasks.convert.export_model import check_beside

    check_beside(tokenizer)
    try:
        words = AutoTokenizer.from_pretrained(tokenizer)
    except Exception as error:  # tokenizers raises plain Exception for what it cannot read
        raise ConversionError(f"{tokenizer}: transformers cannot load this tokenizer ({error})") from error
    found = {"eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    return replace(model, fields=model.fields | found)


def _tokens(count: int, vocabulary: int, text: Path | None, model: Path) -> Any:
    """(sequences, length): of a text by the model's tokenizer, or at random, the same each time."""
    import torch

    if text is None:
        flat = torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(0))
    else:
        from transformers import AutoTokenizer

        flat = torch.tensor(AutoTokenizer.from_pretrained(model)(text.read_text())["input_ids"][:count])
    length = min(SEQUENCE, len(flat))
    return flat[: len(flat) // length * length].view(-1, length)


def _verify(folder: Path, no_verify: bool) -> None:
    if (folder / MANIFEST).exists() and not no_verify:
        verify(folder)


def _notes(notes: list[str]) -> None:
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _report(found: "Preflight") -> NoReturn:
    for line in found.lines:
        click.echo(line)
    _notes(found.notes)
    for problem in found.problems:
        click.echo(f"error: {problem}", err=True)
    sys.exit(1 if found.problems else 0)


@contextmanager
def _errors_in_a_line() -> Iterator[None]:
    try:
        yield
    except (StageError, ArtifactError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    columns = (BarColumn(bar_width=28), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn(title), *columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


@contextmanager
def _counts() -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description:<8}"), BarColumn(bar_width=28), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        tasks = {what: shown.add_task(what, total=None) for what in ("weights", "layers")}
        yield lambda what, done, total: shown.update(tasks[what], completed=done, total=total)


if __name__ == "__main__":
    main()
