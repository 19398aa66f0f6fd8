"""Hold conversations of the model under evaluation with an evaluator's environment or tools, as post-training does.

Importing this module imports TRL, which knows how model families write their calls.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from baton.tasks.core.job import StageError
from baton.tasks.environments.environments import Environments
from baton.tasks.evaluate.episodes import Played
from baton.tasks.evaluate.model_info import ModelInfo
from baton.tasks.evaluate.questions import Question
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.posttrain.spec import LengthLimits
from baton.tasks.posttrain.tool_calls import ToolCalls
from baton.tasks.posttrain.turns import Conversation, converse

if TYPE_CHECKING:
    from baton.tasks.evaluate.answer import EvaluatedModel

CONVERSATIONS_A_CALL = 128  # at the same time, each with a process; the most that a resume may have to repeat


def play(
    name: str,
    spec: EvaluatorSpec,
    questions: Sequence[Question],
    environments: Environments,
    info: ModelInfo,
    model: "EvaluatedModel",
) -> list[list[Played]]:
    """Hold `spec.samples` conversations about each question, all with the same state of the environment. Raises
    StageError if an environment fails by itself, or if all are lost."""
    tokenizer = info.encoder.tokenizer
    calls = ToolCalls(tokenizer, info.encoder, environments.schemas)
    shown = f"evaluate.{name}.max_new_tokens {spec.max_new_tokens} and the model's {info.positions} positions"
    limits = LengthLimits(info.positions - spec.max_new_tokens, spec.max_new_tokens, info.positions, shown)

    def conversations(asked: Sequence[Question], begin: int) -> list[Played]:
        rows = [question.row | {"prompt": question.prompt} for question in asked]
        seeds = [_seed(model.seed, question.id) for question in asked]
        starts: dict[int, int] = {}  # lengths of the conversations' prompts

        def generate(
            prompts: list[list[int]], numbers: list[int], turn: int, most: int
        ) -> tuple[list[list[int]], list[list[float]]]:
            stops = [calls.end, *info.encoder.ends]
            starts.update({number: len(prompt) for number, prompt in zip(numbers, prompts, strict=True) if turn == 0})
            # Each prompt has its own limit, independent of those of the others and of the engine
            rooms = [starts[at] + limits.new - len(prompt) for at, prompt in zip(numbers, prompts, strict=True)]
            sampled = model.turns(prompts, spec, rooms, seed=_seed(model.seed, name, begin, turn), stops=stops)
            return [list(turn.token_ids) for turn in sampled], [list(turn.logprobs) for turn in sampled]

        done = converse(rows, seeds, environments, calls, generate, limits, spec.max_turns)
        return [_played(one, tokenizer) for one in done]

    asked = [question for question in questions for _ in range(spec.samples)]
    played: list[Played] = []
    for begin in range(0, len(asked), CONVERSATIONS_A_CALL):
        model.job.progress(begin, len(asked), "conversations", now=name)
        batch = asked[begin : begin + CONVERSATIONS_A_CALL]
        played += [Played(*fields) for fields in model.saved.answer(partial(conversations, batch, begin))]
    if lost := [one.lost for one in played if one.lost]:
        message = f"evaluate.{name}: {len(lost)} of {len(played)} conversations have lost their environment; {lost[0]}"
        if len(lost) == len(played):
            raise StageError(message)
        print(message, flush=True)
    return [played[at : at + spec.samples] for at in range(0, len(played), spec.samples)]


def _played(one: Conversation, tokenizer: Any) -> Played:
    last = one.messages[-1]
    return Played(
        text=str(tokenizer.decode(one.ids)),
        ended=last["role"] == "assistant" and not last.get("tool_calls") and one.ids[-1] in tokenizer.all_special_ids,
        tokens=one.ids,
        prompt=one.row["prompt"],
        messages=one.messages,
        turns=one.turns,
        calls=one.calls,
        errors=one.errors,
        state=one.final.state,
        reward=one.final.reward,
        lost=one.final.lost,
    )


def _seed(*parts: int | str) -> int:
    return int.from_bytes(blake3(repr(parts).encode()).digest(length=4), "little") >> 1  # torch's and vLLM's bound
