"""Alternate between a model and its environments: sample, run the calls, append their answers, and sample again.

    done = converse(rows, seeds, environments, calls, generate, limits, max_turns)

All conversations of a batch are sampled together, turn by turn. Sampled tokens are kept as ids; only the tools' answers
are encoded (tool_calls.py), and their tokens have a zero in `mask` and in `logprobs`. A conversation ends when a turn
has no call, lacks the token that ends turns with calls, or is the last of `max_turns`; when there is no room for the
answers; or when its environment is lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from baton.tasks.core.job import StageError
from baton.tasks.environments.environments import Environments, Final
from baton.tasks.posttrain.spec import LengthLimits
from baton.tasks.posttrain.tool_calls import ToolCalls, calls_of, tool_messages
from baton.tasks.rows.stored import Row

Generate = Callable[[list[list[int]], list[int], int, int], tuple[list[list[int]], list[list[float]]]]
"""A function (prompts, the number of each prompt's conversation, completed turns, maximum of new tokens) -> the sampled
tokens and their log-probabilities."""


@dataclass
class Conversation:
    """A prompt, the model's turns, and the answers to its calls."""

    row: Row  # the prompt includes the observation that the environment's reset returned
    prompt: list[int]
    ids: list[int] = field(default_factory=list)  # the completion: the model's turns and the answers
    mask: list[int] = field(default_factory=list)  # per token of `ids`: 1 if the model sampled it, else 0
    logprobs: list[float] = field(default_factory=list)  # per token of `ids`; 0 if it was not sampled
    messages: list[Row] = field(default_factory=list)  # messages of the completion
    turns: int = 0
    calls: int = 0
    errors: int = 0  # calls that failed
    final: Final = field(default_factory=lambda: Final({}))

    def add_sampled(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        self.ids += ids
        self.mask += [1] * len(ids)
        self.logprobs += logprobs

    def add_answers(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)


def converse(
    rows: Sequence[Row],
    seeds: Sequence[int],
    environments: Environments,
    calls: ToolCalls,
    generate: Generate,
    limits: LengthLimits,
    max_turns: int,
) -> list[Conversation]:
    """Hold a conversation about each row; the rows' prompts are messages. `limits.new` is the maximum length of a
    conversation's `ids`. Raises StageError if an environment fails by itself, not because of a call."""
    observations = environments.reset(rows, seeds)
    done = [_begun(row, seen, calls, limits) for row, seen in zip(rows, observations, strict=True)]
    going = list(range(len(done)))
    for turn in range(max_turns):
        if not going:
            break
        room = max(limits.new - len(done[number].ids) for number in going)
        sampled = generate([done[number].prompt + done[number].ids for number in going], going, turn, room)
        for number, ids, logprobs in zip(going, *sampled, strict=True):
            _sample(done[number], ids, logprobs, calls, limits.new)
        asked = {
            number: some
            for number in going
            if (some := calls_of(done[number].messages[-1])) and calls.is_ended(done[number].ids)
        }
        answered = environments.call(asked)
        for number, answers in answered.items():
            conversation = done[number]
            conversation.calls += len(answers)
            conversation.errors += sum(answer.failed for answer in answers)
            conversation.messages += tool_messages(asked[number], answers)
        for number in asked.keys() - answered.keys():  # calls that have ended their environment
            done[number].calls, done[number].errors = done[number].calls + 1, done[number].errors + 1
        if turn + 1 == max_turns:
            break
        going = [number for number in answered if _answer(done[number], len(answered[number]), calls, limits.new)]
    for conversation, final in zip(done, environments.finish(), strict=True):
        conversation.final = final
    return done


def _begun(row: Row, observation: str | None, calls: ToolCalls, limits: LengthLimits) -> Conversation:
    """Return the conversation before the model's first turn; as in TRL, an observation is appended to the last
    message."""
    *before, last = row["prompt"]
    prompt = [*before, last | {"content": (last.get("content") or "") + observation}] if observation else row["prompt"]
    ids = calls.encoder.prompt(row | {"prompt": prompt, "tools": calls.schemas})
    if not limits.fit(len(ids), 0):
        raise StageError(
            f"a prompt has {len(ids)} tokens with the tools and the result of reset, and is not within {limits.shown}; "
            f"raise the limit. The prompt: {prompt!r:.200}"
        )
    return Conversation(row | {"prompt": prompt}, ids)


def _sample(
    conversation: Conversation, ids: Sequence[int], logprobs: Sequence[float], calls: ToolCalls, new: int
) -> None:
    """Append a sampled turn, cut to the remaining room."""
    room = new - len(conversation.ids)
    conversation.turns += 1
    conversation.messages.append(calls.message(ids[:room], conversation.prompt + conversation.ids))
    conversation.add_sampled(ids[:room], logprobs[:room])


def _answer(conversation: Conversation, count: int, calls: ToolCalls, new: int) -> bool:
    """Append the tokens of the conversation's last `count` messages, the answers, if there is room for them and a
    further turn. Return whether there is."""
    ids = calls.encoded(conversation.messages[-count:])
    if len(conversation.ids) + len(ids) >= new:
        return False
    conversation.add_answers(ids)
    return True


def counts(conversations: Sequence[Conversation]) -> list[float]:
    """Return the sums that `totals` needs, over a batch or a rank's part of it."""
    return [
        len(conversations),
        sum(one.turns for one in conversations),
        sum(one.calls for one in conversations),
        sum(one.errors for one in conversations),
        sum(bool(one.final.lost) for one in conversations),
    ]


def totals(counted: Sequence[float]) -> dict[str, float]:
    """Return the metrics of `counts`: means per conversation, and the share of calls that failed."""
    count, turns, calls, errors, lost = counted
    return {
        "turns": turns / count,
        "tool_calls": calls / count,
        "tool_errors": errors / calls if calls else 0.0,
        "environments_lost": lost / count,
    }
