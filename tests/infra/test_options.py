"""Options of commands: numbers, folders and files that would cause an error after minutes, or never."""

import os
from pathlib import Path
from pkgutil import resolve_name

import click
import pytest
from click.testing import CliRunner

from baton.infra.options import Folder, NewFile, Number
from baton.workflows.command_line import COMMANDS


def commands(name: str) -> list[click.Command]:
    main = resolve_name(COMMANDS[name][0])
    return list(main.commands.values()) if isinstance(main, click.Group) else [main]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_number_of_a_command_has_bounds_and_no_number_is_a_nan(name: str) -> None:
    numbers = [
        (command, option)
        for command in commands(name)
        for option in command.params
        if isinstance(option.type, click.types.FloatParamType | click.types.IntParamType)
    ]
    for command, option in numbers:
        assert isinstance(option.type, Number | click.IntRange), option
        for value in ("nan", "inf", "-inf", "1e999", "-1", "9" * 5000):
            result = CliRunner().invoke(command, [option.opts[0], value])
            assert result.exit_code == 2, (option, value)
            assert "Invalid value for" in result.output and not isinstance(result.exception, ValueError)


def test_a_device_is_no_folder_and_a_folder_no_file(tmp_path: Path) -> None:
    @click.command()
    @click.option("--folder", type=Folder())
    @click.option("--to", type=NewFile())
    def command(folder: Path | None, to: Path | None) -> None:
        click.echo(f"{folder} {to}")

    def output_of(*words: str) -> str:
        return CliRunner().invoke(command, words).output

    assert "'/dev/null' is not a folder" in output_of("--folder", "/dev/null")
    assert "is a directory" in output_of("--to", str(tmp_path))
    assert "is not a folder that can be written to" in output_of("--to", str(tmp_path / "none" / "x.json"))
    assert "cannot be written: file name too long" in output_of("--to", str(tmp_path / ("x" * 300)))
    assert "cannot be written: " in output_of("--to", "/proc/x.json")
    os.mkfifo(tmp_path / "pipe")
    assert "cannot be written: " in output_of("--to", str(tmp_path / "pipe"))
    assert output_of("--folder", str(tmp_path), "--to", str(tmp_path / "x.json")) == f"{tmp_path} {tmp_path}/x.json\n"
    assert not (tmp_path / "x.json").exists()
