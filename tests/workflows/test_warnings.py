"""Settings of a recipe that work, but are probably not intended."""

from pathlib import Path

from baton.tasks.data.spec import CorpusSpec
from baton.tasks.rows.spec import RowsSpec
from baton.workflows.checks.run_context import RunContext
from baton.workflows.checks.warnings import warnings_of


def test_files_that_are_not_read_are_counted(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.json"):
        (tmp_path / name).write_text('{"text": "a"}')
    corpus = CorpusSpec.model_validate({"sources": {"web": {"kind": "files", "path": str(tmp_path)}}})
    rows = RowsSpec(path=str(tmp_path))
    assert warnings_of(RunContext({"corpus": corpus, "data": {"chat": rows}})) == [
        f"corpus.sources.web: {tmp_path}: 2 files are not read: 1 .json, 1 .jsonl (kind: jsonl reads them)",
        f"data.chat: {tmp_path}: 1 file is not read: 1 .txt; {tmp_path}: 1 .json not read: in a folder mostly metadata; "
        "use a glob to read them",
    ]
    assert warnings_of(RunContext({"data": {"chat": RowsSpec(path=str(tmp_path / "b.jsonl"))}})) == []
