"""The relations of artifacts to the inputs of their runs."""

import pytest

from baton.infra.lineage.ancestry import Run
from baton.infra.tracking.relations import RECORDED_BEFORE, Relation
from baton.tasks.artifacts import kinds

INPUTS = {"model": "1", "model.base": "2", "models.0": "3"}


def test_a_publication_is_of_one_model_and_describes_the_others() -> None:
    publishes = Relation("publishes", of="model")
    assert {name: publishes.to("9", name, INPUTS) for name in INPUTS} == {
        "model": "publishes",
        "model.base": "publishes",
        "models.0": "describes",
    }


def test_what_is_one_of_the_inputs_is_handed_on() -> None:
    assert Relation("selected from").to("3", "models.0", INPUTS) == "handed on"


def test_a_record_s_own_relation_counts_before_that_of_its_kind() -> None:
    run = Run("1", "words", "FINISHED", 0.0, 1.0, inputs=INPUTS, kind="report", related=Relation("measured"))
    assert run.relation.name == "measured"


@pytest.mark.parametrize("kind", RECORDED_BEFORE)
def test_earlier_records_have_the_relation_that_their_kind_has_now(kind: str) -> None:
    assert kinds()[kind].relation == RECORDED_BEFORE[kind]
