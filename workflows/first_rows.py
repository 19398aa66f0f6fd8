"""What the first rows of each set tell before anything is spent: whether a stage can use rows of their kind, what the
model's chat template makes of them, and how many are too long. A function that makes rows is called, and a data set's
folder read, in a process of its own. Sets and models that are not on this machine are looked at by their stages."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from infra.placement.storage import is_bucket
from infra.progress import say
from tasks.evaluate.spec import EvaluatorSpec
from tasks.job import StageError
from tasks.rows.spec import RowsSpec
from tasks.rows.stored import Row, is_conversational, split_key
from tasks.sft.spec import SFTSpec
from tasks.spec import Problem
from workflows.given import Given, positions_of, runs_on_a_cluster
from workflows.post_training import Step

if TYPE_CHECKING:  # Transformers: not on the path of --help
    from tasks.posttrain.encode import Encoder
    from tasks.rows.rows import First


def problems_of_rows(given: Given) -> list[Problem]:
    """Those of each stage of `post_training` and of each evaluator with the rows that it names."""
    sets = {name: rows for name, rows in given.specs.get("data", {}).items() if not rows.problems()}
    evaluators = given.specs["evaluate"].evaluators() if "evaluate" in given else {}
    asked = {name: each for name, each in evaluators.items() if each.data in sets}
    used = {*(each.data for each in asked.values()), *(step.spec.data for step in given.tunings())}
    found: list[Problem] = []
    first: dict[str, First] = {}
    for name, rows in sets.items():
        try:
            if name in used and not rows.missing() and (seen := first_of(rows)):
                first[name] = seen
        except StageError as error:
            source = "function" if rows.function else "huggingface"
            found.append(Problem(f"data.{name}.{source}", rows.place(), f"a source that gives rows: {error}"))
    steps = [step for step in given.tunings() if step.spec.data in first]
    found += [
        Problem(f"evaluate.{name}.data", each.data, f"a set with held-out rows; data.{each.data}.held_out is 0")
        for name, each in asked.items()
        if each.data and not sets[each.data].held_out and not sets[each.data].documents
    ]
    found += [problem for step in steps for problem in _kind(step, first[step.spec.data])]
    looked_at = {name: each for name, each in asked.items() if each.data in first}
    if not found:
        found += _rendered(given, steps, looked_at, first)
    if not found:
        found += [
            problem
            for name, each in looked_at.items()
            for problem in _held_out(name, each, sets[str(each.data)], first[str(each.data)])
        ]
    return found


def first_of(rows: RowsSpec) -> "First | None":
    """The first rows of a set that can be looked at here: not those of the hub. Raises StageError for a function that
    fails."""
    folder = rows.huggingface and rows.huggingface.source().folder()
    if not (rows.function or folder) or rows.documents or rows.placement or runs_on_a_cluster():
        return rows.first()
    from tasks.rows.first import TooSlow, first_rows  # pyarrow: not on the path of --help

    try:
        return first_rows(rows)
    except TooSlow as error:
        say(f"{rows.place()} is not looked at before the run: {error}")
        return None


def _rendered(
    given: Given, steps: Sequence[Step], looked_at: Mapping[str, EvaluatorSpec], first: Mapping[str, "First"]
) -> list[Problem]:
    """What the model's tokenizer and chat template make of the rows."""
    positions = positions_of(given)
    if positions is None or not (steps or looked_at):
        return []
    encoder = _encoder(given, [row for each in first.values() for row in each.rows])
    if encoder is None or isinstance(encoder, Problem):
        return [] if encoder is None else [encoder]
    found = []
    for step in steps:
        found += _tuned_on(step, first[step.spec.data], encoder, positions[0])
    for name, each in looked_at.items():
        found += _asked(name, each, first[str(each.data)].rows, encoder, positions[0])
    return found


def _held_out(name: str, spec: EvaluatorSpec, rows: RowsSpec, first: "First") -> list[Problem]:
    """A set that was seen whole holds out as many rows as are asked for, if a number is."""
    from tasks.data.documents import split_of
    from tasks.rows.rows import MOST_SEEN

    if rows.documents or first.faults or len(first.rows) >= MOST_SEEN:
        return []
    count = sum(split_of(split_key(row, rows.seed), rows.held_out) == "held_out" for row in first.rows)
    of_all = f"{count} of the {len(first.rows)} rows of data.{spec.data} are held out"
    if count == 0:
        return [Problem(f"data.{spec.data}.held_out", rows.held_out, f"more: {of_all}, and evaluate.{name} asks those")]
    if "prompts" in spec.model_fields_set and count < spec.prompts:
        say(f"evaluate.{name}.prompts: {spec.prompts}: {of_all}: raise data.{spec.data}.held_out, or ask for fewer")
    return []


def _kind(step: Step, first: "First") -> list[Problem]:
    if first.kind is None or first.kind in step.spec.row_kinds():
        return []
    allowed = f"rows of kind {' or '.join(step.spec.row_kinds())}; those of this set are {first.kind}"
    return [Problem(f"{step.path}.data", step.spec.data, allowed)]


def _encoder(given: Given, rows: Sequence[Row]) -> "Encoder | Problem | None":
    """With the tokenizer of the model that the run starts from; None where that is not on this machine."""
    model = given.specs.get("start_from")
    if model is None or is_bucket(model.model) or model.missing() or importlib.util.find_spec("transformers") is None:
        return None
    folder = model.folder()
    if folder is None:
        return None
    from transformers import AutoTokenizer

    from tasks.posttrain.encode import Encoder

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # tokenizers raises no narrower one
        return Problem("start_from.model", model.model, f"a folder whose tokenizer Transformers loads: {error}")
    if not tokenizer.chat_template and any(map(is_conversational, rows)):
        say("start_from.model has no chat template: it is asked in ChatML, which tuned models are given")
    return Encoder(tokenizer)


def _tuned_on(step: Step, first: "First", encoder: "Encoder", positions: int) -> list[Problem]:
    limits = step.spec.limits(positions)
    try:
        lengths = [_tokens(step, str(first.kind), row, encoder) for row in first.rows]
    except StageError as error:
        return [Problem(f"{step.path}.data", step.spec.data, str(error))]
    too_long = [sum(each) for each in lengths if not limits.fit(*each)]
    if not too_long:
        return []
    told = (
        f"{len(too_long)} of the first {len(lengths)} rows are longer than {limits.said} "
        f"(the longest has {max(too_long)} tokens)"
    )
    meant = step.spec.max_prompt_tokens and step.spec.max_new_tokens  # the recipe's own limits may leave out many
    if len(too_long) < len(lengths) and (meant or 2 * len(too_long) <= len(lengths)):
        say(f"{step.path}: {told}: such rows are left out")
        return []
    allowed = f"{told}: set it and max_new_tokens (the model has {positions} positions for both), or give shorter rows"
    return [Problem(f"{step.path}.max_prompt_tokens", step.spec.max_prompt_tokens, allowed)]


def _tokens(step: Step, kind: str, row: Row, encoder: "Encoder") -> tuple[int, ...]:
    """As `Limits.fit` has them, of a row as the stage takes it. Raises StageError."""
    from tasks.posttrain.encode import IGNORED, loss_of, prompted

    if isinstance(step.spec, SFTSpec):
        loss = loss_of(step.spec.loss, kind)
        ids, labels = encoder.learned(row, loss)
        if kind != "prompt_completion" or loss == "all":
            return (len(ids),)
        completion = sum(label != IGNORED for label in labels)
        return len(ids) - completion, completion
    if kind == "preference":
        (prompt, chosen), (_, rejected) = (encoder.completion(row, name) for name in ("chosen", "rejected"))
        return len(prompt), max(len(chosen), len(rejected))
    return len(encoder.prompt(prompted(row))), 0


def _asked(name: str, spec: EvaluatorSpec, rows: Sequence[Row], encoder: "Encoder", positions: int) -> list[Problem]:
    """Of an evaluator whose rows ask nothing, or more than the model has positions for."""
    from tasks.evaluate.questions import question_of

    try:
        prompts = [row | {"prompt": question_of(name, row)[0]} for row in rows]
        lengths = [len(encoder.prompt(row)) for row in prompts]
    except StageError as error:
        return [Problem(f"evaluate.{name}.data", spec.data, str(error))]
    too_long = [length for length in lengths if length + spec.max_new_tokens > positions]
    if not too_long:
        return []
    told = (
        f"{len(too_long)} of the first {len(lengths)} prompts are longer than the model's {positions} positions less "
        f"max_new_tokens (the longest has {max(too_long)} tokens)"
    )
    if len(too_long) < len(lengths):
        say(f"evaluate.{name}: {told}: such rows are not asked")
        return []
    return [Problem(f"evaluate.{name}.max_new_tokens", spec.max_new_tokens, f"fewer, or shorter rows: {told}")]
