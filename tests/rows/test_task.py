"""The stages as tasks of a DAG."""

import json
import os
import subprocess
import sys
from pathlib import Path

from baton.tasks.rows.spec import RowsSpec
from tests.rows.by_hand import jsonl, split
from tests.source import ROOT


def test_a_set_of_files_and_one_of_a_function_are_made_and_kept_apart(tmp_path: Path) -> None:
    questions = [{"prompt": f"Question {number}?", "answer": number} for number in range(60)]
    one = RowsSpec(path=str(jsonl(tmp_path / "one.jsonl", *questions)), held_out=0.3)
    (tmp_path / "asking.py").write_text(f"def rows():\n    return {questions!r}\n")
    two = RowsSpec.model_validate({"function": f"{tmp_path / 'asking.py'}:rows", "held_out": 0.3, "seed": 1})
    words = [sys.executable, "-m", "tests.rows.two_sets", one.model_dump_json(), two.model_dump_json()]
    environment = os.environ | {"BATON_HOME": str(tmp_path / "home")}
    ended = subprocess.run(words, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    made = json.loads(ended.stdout.splitlines()[-1])
    assert (made["row_kind"], made["columns"]) == ("prompt", ["prompt", "answer"])
    assert made["contaminated"] > 0
    assert len(split(Path(made["place"]), "train")) == made["rows"]
