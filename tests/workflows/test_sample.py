"""A curation tried on a sample of the text, and the documents that it would drop."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.tasks.data.spec import CorpusSpec
from baton.tasks.rows.spec import RowsSpec
from baton.workflows.plan.command import main
from baton.workflows.plan.sample import tried

LONG = " ".join(f"word{number}" for number in range(60))


def lines_of(
    folder: Path, part: float, curate: list[object], evaluated: dict[str, RowsSpec] | None = None
) -> list[str]:
    with (folder / "x.jsonl").open("w") as file:
        for number in range(100):
            text = f"{LONG} {number}" if number % 10 == 9 else " ".join(f"{number}-{at}" for at in range(50))
            file.write(json.dumps({"text": text}) + "\n")
    source = {"kind": "jsonl", "path": f"{folder}/x.jsonl"}
    return list(tried(CorpusSpec.model_validate({"source": source, "curate": curate}), part, evaluated or {}))


def test_each_step_says_what_it_would_drop(tmp_path: Path) -> None:
    (tmp_path / "filters.py").write_text("def keep(document):\n    return '7-1 ' not in document.text or 'seven'\n")
    steps = [{"function": f"{tmp_path}/filters.py:keep"}, {"near_duplicates": {}}, {"quality": {"rules": ["gopher"]}}]
    shown = lines_of(tmp_path, 1.0, steps)
    assert shown[0] == "\nsource, 100.0 %: 100 documents, 0 left"
    assert shown[1].split() == ["function", "100", "documents", "10.0", "%", "dropped", "seven", "10"]
    assert shown[2].startswith("    x.jsonl#8: 7-0 7-1")
    assert shown[3].split() == ["near_duplicates", "90", "documents", "10.0", "%", "dropped", "near", "duplicate", "9"]
    assert shown[4].startswith("    x.jsonl#20 (near duplicate of x.jsonl#10): word0 word1")
    assert shown[5].split()[:5] == ["quality", "81", "documents", "100.0", "%"]


def test_a_step_that_would_end_the_run_is_reported(tmp_path: Path) -> None:
    some: list[object] = [{"quality": {"rules": ["gopher"]}, "max_dropped": 0.1}]
    assert (
        "the run would be refused if all its text is like this: curate.0 (quality)" in lines_of(tmp_path, 1.0, some)[-1]
    )


def test_documents_with_texts_of_the_evaluation_are_shown_and_what_was_not_looked_for(tmp_path: Path) -> None:
    asked = " ".join(f"12-{at}" for at in range(20))
    (tmp_path / "exam.jsonl").write_text(json.dumps({"prompt": asked, "completion": "x"}) + "\n")
    sets = {"exam": {"path": f"{tmp_path}/exam.jsonl", "held_out": 1.0}, "far": {"huggingface": {"name": "some/set"}}}
    evaluated = {name: RowsSpec.model_validate(spec) for name, spec in sets.items()}
    shown = lines_of(tmp_path, 1.0, [{"decontaminate": {"against": ["evaluate"]}}], evaluated)
    assert shown[0] == "decontaminate is tried without data.far, which the run downloads"
    assert shown[2].split() == ["decontaminate", "100", "documents", "1.0", "%", "dropped", "exam.jsonl", "1"]
    assert shown[3].startswith("    x.jsonl#13 (has a text of exam.jsonl, held-out row 1): 12-0 12-1")


def test_what_is_broken_is_counted(tmp_path: Path) -> None:
    good = "".join(json.dumps({"text": LONG + str(number)}) + "\n" for number in range(3))
    (tmp_path / "x.jsonl").write_text(f"{good}broken\n{good.upper()}")
    source = {"kind": "jsonl", "path": f"{tmp_path}/x.jsonl", "on_broken": "skip"}
    shown = list(tried(CorpusSpec.model_validate({"source": source}), 1.0, {}))
    assert "x.jsonl, line 4: not JSON" in shown[1] and "and 3 more records" in shown[1]


def test_only_a_part_is_read(tmp_path: Path) -> None:
    assert "100 documents" not in lines_of(tmp_path, 0.01, [])[0]


@pytest.mark.parametrize("share", ["0%", "half", "120%"])
def test_a_share_is_between_nothing_and_all(share: str) -> None:
    result = CliRunner().invoke(main, ["recipe.yaml", "--sample", share])
    assert result.exit_code == 2
    assert "is not a share" in result.output


def test_a_function_step_is_tried_on_every_source_and_every_corpus(tmp_path: Path) -> None:
    """The sources are functions of one file, the corpus has steps before and after near_duplicates, and two corpora
    have files with the same name."""
    for name, kept in (("one", "True"), ("other", "'other'")):
        (tmp_path / name).mkdir()
        lines = [f"def {source}():\n    yield from (f'{source}{{n}} ' * 9 for n in range(3))" for source in "ab"]
        (tmp_path / name / "own_texts.py").write_text("\n".join([*lines, f"def keep(document): return {kept}", ""]))
    shown: list[str] = []
    for name in ("one", "other"):
        file = f"{tmp_path}/{name}/own_texts.py"
        sources = {source: {"kind": "function", "function": f"{file}:{source}"} for source in "ab"}
        steps = [{"function": f"{file}:keep"}, {"near_duplicates": {}}, {"function": f"{file}:keep"}]
        shown += tried(CorpusSpec.model_validate({"sources": sources, "curate": steps}), 1.0, {})
    left = [line for line in shown if line.endswith("left")]
    assert [line.split(", ")[-1] for line in left] == ["3 left", "3 left", "0 left", "0 left"]


def test_a_function_that_fails_is_named_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "filters.py").write_text("def keep(document): return 1 / 0\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n')
    source = {"kind": "jsonl", "path": str(tmp_path / "rows.jsonl")}
    recipe = {"corpus": {"source": source, "curate": [{"function": f"{tmp_path / 'filters.py'}:keep"}]}}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    result = CliRunner().invoke(main, [str(tmp_path / "recipe.yaml"), "--sample", "100%"])
    assert result.exit_code == 1
    assert "Error: " in result.output and "filters.py:keep: ZeroDivisionError" in result.output
    assert "for rows.jsonl#1" in result.output
