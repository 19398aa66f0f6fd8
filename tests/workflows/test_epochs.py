"""The epochs of a stage's data, shown before the run."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from baton.tasks.data.spec import CorpusSpec
from baton.tasks.posttrain.methods.dpo.spec import DPOSpec
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.methods.kto import KTOSpec
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.rows.spec import RowsSpec
from baton.workflows.plan.epochs import counted, of_pretraining, of_tuning


@pytest.fixture
def rows(tmp_path: Path) -> RowsSpec:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 410)
    return RowsSpec(path=str(tmp_path / "rows.jsonl"), held_out=0.0)


def test_rows_of_files_are_counted_and_those_of_a_cached_set_known(rows: RowsSpec) -> None:
    spec = SFTSpec(steps=30, batch_size=64)
    assert of_tuning(spec, rows, {}).text() == "4.31 over about 410 rows: repeated"
    assert of_tuning(spec, rows, {"rows": 3840}).text() == "0.5 over 3,840 rows"
    halved = rows.model_copy(update={"held_out": 0.5, "limit": 300})
    assert counted(halved) == 150


def test_parquet_says_how_many_it_has_and_compressed_lines_do_not(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a"] * 70}), tmp_path / "rows.parquet")
    assert counted(RowsSpec(path=str(tmp_path / "rows.parquet"), held_out=0.0)) == 70
    (tmp_path / "rows.parquet").write_bytes(b"no parquet")
    assert counted(RowsSpec(path=str(tmp_path / "rows.parquet"))) is None
    (tmp_path / "rows.jsonl.gz").write_bytes(b"")
    assert counted(RowsSpec(path=str(tmp_path / "rows.jsonl.gz"))) is None
    assert counted(RowsSpec(path="s3://bucket/rows.jsonl")) is None


def test_grpo_goes_over_prompts_and_not_over_completions(rows: RowsSpec) -> None:
    """140 steps of 512 completions, with 8 per prompt, over 7,099 rows are 1.26 epochs."""
    spec = GRPOSpec(steps=140, batch_size=512, generations=8)
    assert of_tuning(spec, rows, {"rows": 7099}).text() == "1.26 over 7,099 rows: repeated"


def test_kto_goes_over_completions_and_a_preference_is_two(rows: RowsSpec, tmp_path: Path) -> None:
    spec = KTOSpec(steps=30, batch_size=64)
    assert of_tuning(spec, rows, {}).text() == "4.31 over about 410 rows: repeated"
    assert of_tuning(spec, rows, {"rows": 410, "row_kind": "preference"}).text() == "2.31 over 410 rows: repeated"
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 410)
    assert of_tuning(spec, rows, {}).text() == "2.31 over about 410 rows: repeated"


def test_what_is_not_known_is_reported(rows: RowsSpec) -> None:
    packed = of_tuning(SFTSpec(packing=True), rows, {})
    assert packed.text() == "not known before the run (several rows are packed into a sequence)"
    pairs = DPOSpec.model_validate({"pairs": {"rewards": ["a.py:b"]}})
    assert of_tuning(pairs, rows, {}).text() == "not known before the run (they are sampled first)"
    hub = RowsSpec.model_validate({"huggingface": {"name": "owner/name"}})
    assert of_tuning(SFTSpec(), hub, {}).text() == "not known before the run (nor is the number of rows)"


def test_a_corpus_is_gone_over_by_its_weight(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 40_000)
    text = CorpusSpec.model_validate({"source": {"kind": "files", "path": str(tmp_path)}, "held_out": 0.1})
    spec = PretrainSpec(steps=10, global_batch=9, sequence_length=100)
    (alone,) = of_pretraining(spec, [text], [])
    assert alone.text() == "1 over about 9,000 tokens"
    weighted = spec.model_copy(update={"data_weights": [3.0, 1.0]})
    first, second = of_pretraining(weighted, [text, text], [{"tokens": 2700}, {"tokens": 45_000}])
    assert (first.text(), second.text()) == ("2.5 over 2,700 tokens: repeated", "0.05 over 45,000 tokens")
    hub = CorpusSpec.model_validate({"source": {"kind": "huggingface", "name": "owner/name"}})
    assert [each.epochs for each in of_pretraining(spec, [text, hub], [])] == [None, None]
