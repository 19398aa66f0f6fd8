"""The difference between two histories."""

from pathlib import Path

from baton.infra.lineage.api import Lineage
from baton.infra.lineage.diff import Compared
from baton.infra.tracking.execution import begin_execution, end_execution
from baton.infra.tracking.record import tracked
from tests.lineage.recorded import Stored, deliver


def test_a_changed_field_is_found_and_nothing_else(lineage: Lineage, store: Stored) -> None:
    found = lineage.diff(store.digests["convert"], store.others["convert"])
    assert found.config == [Compared("pretrain.optimizer.lr", "0.003", "0.001")]
    assert (found.data, found.code, found.versions) == ([], [], [])
    same = {pair.name: pair.same for pair in found.artifacts}
    assert same == {"corpus": True, "tokenizer": True, "shards": True, "pretrain": False, "convert": False}


def test_an_artifact_does_not_differ_from_itself(lineage: Lineage, store: Stored) -> None:
    assert lineage.diff(store.digests["sft"], store.digests["sft"]).none


def test_a_longer_history_has_stages_that_the_other_lacks(lineage: Lineage, store: Stored) -> None:
    found = lineage.diff(store.digests["sft"], store.digests["convert"])
    assert not found.none
    assert [pair.name for pair in found.artifacts if pair.b is None] == ["sft"]


def test_other_data_and_other_code_are_found(home: Path, tmp_path: Path) -> None:
    for number, letter in enumerate("ac"):
        id = begin_execution("one", {})
        with tracked("corpus", tmp_path / f"corpus{number}", spec={"seed": 1}, inputs={}) as record:
            record.log_output("corpus", letter * 64, {})
        with tracked("shards", tmp_path / f"shards{number}", spec={}, inputs={"corpus": letter * 64}) as record:
            record.log_output("tokenized_corpus", chr(ord(letter) + 1) * 64, {})
        end_execution()
        deliver(id)
    found = Lineage().diff("b" * 64, "d" * 64)
    assert found.data == [Compared("corpus", "a" * 64, "c" * 64)]
    assert found.config == []
