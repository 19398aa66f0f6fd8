"""A machine whose locale is not UTF-8."""

import os
import subprocess
import sys
from pathlib import Path

from tests.source import ROOT

PROGRAM = r"""
from baton.infra.errors import UserError
from baton.workflows.recipe.text import load
from baton.workflows.recipe import Recipe
import pathlib, sys
for text in ('name: \u00fc\u2192', 'corpus: {source: {kind: files, path: \u00fc.txt}}'):
    pathlib.Path(sys.argv[1]).write_text(text)
    try:
        load(sys.argv[1], Recipe.model_validate)
    except UserError as error:
        print(error)
"""


def test_files_are_utf_8_and_what_cannot_be_printed_is_escaped(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "recipe.yaml")]
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | ascii_only, capture_output=True, encoding="ascii", check=False
    )
    assert done.returncode == 0, done.stderr
    assert "name: '\\xfc\\u2192' (line 1)" in done.stdout
    assert (tmp_path / "recipe.yaml").read_bytes().endswith("path: ü.txt}}".encode())
    assert "a name that this machine's locale can encode (ascii); or set PYTHONUTF8=1" in done.stdout
