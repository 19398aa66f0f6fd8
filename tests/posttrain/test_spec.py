"""The length limits of rows, from the spec or the model's positions."""

from typing import Any

import pytest

from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.posttrain.methods.dpo.spec import DPOSpec
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.spec import LENGTH, SAMPLED, PostTrainSpec


class Sampling(PostTrainSpec):
    def uses_vllm(self) -> bool:
        return True


def limits(positions: int, kind: type[PostTrainSpec] = PostTrainSpec, **fields: Any) -> tuple[int, int, int]:
    found = kind(data="chat", **fields).limits(positions)
    return found.prompt, found.new, found.total


def test_both_limits_are_kept_as_they_are_given() -> None:
    assert limits(256, max_prompt_tokens=96, max_new_tokens=48) == (96, 48, 144)


@pytest.mark.parametrize(("positions", "longest"), [(256, 256), (131_072, LENGTH)])
def test_without_limits_a_row_fits_that_fits_the_model(positions: int, longest: int) -> None:
    assert limits(positions) == (longest, longest, longest)


def test_one_limit_leaves_the_rest_to_the_other() -> None:
    assert limits(131_072, max_new_tokens=64) == (LENGTH, 64, LENGTH + 64)
    assert limits(256, max_new_tokens=64) == (192, 64, 256)
    assert limits(256, max_prompt_tokens=192) == (192, 64, 256)


def test_what_is_sampled_has_an_end() -> None:
    assert limits(131_072, Sampling) == (LENGTH, SAMPLED, LENGTH + SAMPLED)
    assert limits(256, Sampling) == (128, 128, 256)


def test_a_row_fits_by_its_parts_or_as_a_whole() -> None:
    found = PostTrainSpec(data="chat", max_prompt_tokens=96, max_new_tokens=48).limits(256)

    assert found.fit(96, 48) and found.fit(144)
    assert not found.fit(97, 1) and not found.fit(1, 49) and not found.fit(145)


def test_the_limits_are_reported_by_their_fields() -> None:
    assert PostTrainSpec(data="chat").limits(256).shown == "256 tokens in all"
    assert PostTrainSpec(data="chat", max_new_tokens=64).limits(256).shown == "max_new_tokens 64 and 256 tokens in all"


def test_vllm_s_share_of_a_gpu_is_in_no_cache_key_and_reaches_the_engine() -> None:
    pairs = {"rewards": ["math"], "gpu_memory_share": 0.123}
    for spec in (
        GRPOSpec.model_validate({"data": "rows", **pairs}),
        DPOSpec.model_validate({"data": "rows", "pairs": pairs}),
        EvaluateSpec.model_validate({"bits_per_byte": {}, "gpu_memory_share": 0.123}),
    ):
        what, how = spec.split_options()
        assert "gpu_memory_share" not in str(spec.identity()) and "0.123" not in str(what)
        assert what.with_options(how) == spec


def test_how_often_checkpoints_are_written_trains_nothing_anew() -> None:
    one, other = (PostTrainSpec(data="chat", checkpoint_every=every) for every in (5, 50))
    assert one.identity() == other.identity()
