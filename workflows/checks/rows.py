"""Check the first rows of each set before any compute: whether a stage can use rows of their kind, whether the model's
chat template accepts them, and how many are too long. A function that makes rows is called, and a dataset's folder
read, in a separate process. Sets and models that are not on this machine are checked by their stages."""

import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from baton.infra.progress import say_once
from baton.infra.storage.address import digest_of
from baton.infra.storage.buckets import is_bucket
from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.rows.spec import MOST_SEEN, RowsSpec
from baton.tasks.rows.stored import Row, is_conversational, split_key
from baton.workflows.checks.run_context import RunContext, positions_of, runs_on_a_cluster
from baton.workflows.dag.post_training import ResolvedStage

if TYPE_CHECKING:  # Transformers: not on the path of --help
    from baton.tasks.posttrain.encode import RowEncoder
    from baton.tasks.rows.rows import First

LOOK_S = 5.0  # time limit for reading the rows of a set
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)  # of held-out rows, to suggest


def problems_of_rows(context: RunContext) -> list[Problem]:
    """The problems that each stage of `post_training` and each evaluator has with the rows that it names."""
    sets = {name: rows for name, rows in context.specs.get("data", {}).items() if not rows.problems()}
    evaluators = context.specs["evaluate"].evaluators() if "evaluate" in context else {}
    asked = {name: spec for name, spec in evaluators.items() if spec.data in sets}
    used = {*(spec.data for spec in asked.values()), *(step.spec.data for step in context.tunings())}
    problems: list[Problem] = []
    first: dict[str, First] = {}
    for name, rows in sets.items():
        try:
            if name in used and not set_problems(rows) and (seen := first_of(rows)):
                first[name] = seen
        except StageError as error:
            source = "function" if rows.function else "huggingface"
            problems.append(Problem(f"data.{name}.{source}", rows.place(), f"a source that gives rows: {error}"))
    steps = [step for step in context.tunings() if step.spec.data in first]
    problems += [
        Problem(f"evaluate.{name}.data", spec.data, f"a set with held-out rows; data.{spec.data}.held_out is 0")
        for name, spec in asked.items()
        if spec.data and not sets[spec.data].held_out and not sets[spec.data].documents
    ]
    problems += [
        Problem(f"evaluate.{name}.train_prompts", spec.train_prompts, f"0: all rows of data.{spec.data} are held out")
        for name, spec in asked.items()
        if spec.data and spec.train_prompts and sets[spec.data].held_out == 1 and not sets[spec.data].documents
    ]
    problems += [problem for step in steps for problem in _kind(step, first[step.spec.data], sets[step.spec.data])]
    looked_at = {name: spec for name, spec in asked.items() if spec.data in first}
    problems += [
        problem for name, spec in looked_at.items() for problem in _no_question(name, spec, first[str(spec.data)])
    ]
    if not problems:
        problems += _rendered(context, steps, looked_at, first)
    if not problems:
        problems += [problem for name in first for problem in _empty_split(name, sets[name], first[name])]
    if not problems:
        for name, spec in looked_at.items():
            _note_few_held_out(name, spec, sets[str(spec.data)], first[str(spec.data)])
    return problems


def set_problems(rows: RowsSpec) -> list[Problem]:
    """The problems with a set on this machine, by its files' names and sizes, or else by their first rows."""
    problems = rows.missing()
    if problems or rows.path is None:
        return problems
    from baton.tasks.rows.first import faults  # imports pyarrow

    return faults(rows)


def first_of(rows: RowsSpec) -> "First | None":
    """The first rows of a set that can be read here, which excludes the hub's. Raises StageError for a function that
    fails."""
    folder = rows.huggingface and rows.huggingface.source().folder()
    if not (rows.function or folder) or rows.documents or rows.placement or runs_on_a_cluster():
        if rows.path is None:
            return None
        from baton.tasks.rows.first import first_of_files  # imports pyarrow

        return first_of_files(rows)
    from baton.tasks.rows.first import TooSlow, first_rows

    try:
        return first_rows(rows)
    except TooSlow as error:
        say_once(f"{rows.place()} is not checked before the run: {error}")
        return None


def valid_first(rows: RowsSpec | None) -> "First | None":
    """The first rows; None if there are none to read, or if they are reported as a problem of the set."""
    if rows is None or rows.problems() or set_problems(rows):
        return None
    try:
        return first_of(rows)
    except StageError:
        return None


def _rendered(
    context: RunContext,
    steps: Sequence[ResolvedStage],
    looked_at: Mapping[str, EvaluatorSpec],
    first: Mapping[str, "First"],
) -> list[Problem]:
    """The problems of the rows with the model's tokenizer and chat template."""
    positions = positions_of(context)
    if positions is None or not (steps or looked_at):
        return []
    encoder = _encoder(context, [row for seen in first.values() for row in seen.rows])
    if encoder is None or isinstance(encoder, Problem):
        return [] if encoder is None else [encoder]
    problems = []
    accepted = {
        name: replace(seen, rows=[row for row in seen.rows if _is_accepted(row, context.specs["data"][name], encoder)])
        for name, seen in first.items()
    }
    for step in steps:
        drops = context.specs["data"][step.spec.data].faulty == "drop"
        problems += _tuned_on(step, accepted[step.spec.data], drops, encoder, positions[0])
    for name, spec in looked_at.items():
        problems += _asked(name, spec, accepted[str(spec.data)].rows, encoder, positions[0])
    used = {step.spec.data for step in steps} | {str(spec.data) for spec in looked_at.values()}
    for name in sorted(used) if not problems else ():
        users = [step for step in steps if step.spec.data == name]
        problems += _refused(name, context.specs["data"][name], encoder, users, str(first[name].kind))
    for notice in encoder.notices():
        say_once(notice)
    return problems


def _is_accepted(row: Row, rows: RowsSpec, encoder: "RowEncoder") -> bool:
    """Return whether a row is used. It is not if the chat template rejects it and the set drops faulty rows."""
    from baton.tasks.posttrain.encode import RowRefused

    if rows.faulty == "drop":
        try:
            encoder.check(row)
        except RowRefused:
            return False
    return True


def _refused(
    name: str, rows: RowsSpec, encoder: "RowEncoder", steps: Sequence[ResolvedStage], kind: str
) -> list[Problem]:
    """Rows of files that the chat template or one of these stages rejects, as far as there is time to read them. The
    stages find them too, but only after the model was loaded."""
    from baton.tasks.posttrain.encode import RowRefused
    from baton.tasks.rows.rows import with_places

    if rows.path is None or digest_of(rows.path) or is_bucket(rows.path):
        return []
    ends, refused = time.monotonic() + LOOK_S, []
    for place, row in with_places(rows):
        reasons = [why for step in steps if (why := _refusal(step, row, kind))]
        try:
            encoder.check(row)
        except RowRefused as error:
            reasons.append(str(error))
        refused += [f"{place}: {why}" for why in reasons[:1]]
        if time.monotonic() > ends or (refused and rows.faulty == "refuse"):
            break
    if refused and rows.faulty == "refuse":
        return [Problem(f"data.{name}.path", rows.path, f"rows that can be used, or `faulty: drop`. {refused[0]}")]
    if refused:
        number = "1 row is" if len(refused) == 1 else f"{len(refused):,} rows are"
        say_once(f"data.{name}: {number} refused and left out: {refused[0]}")
    return []


def _empty_split(name: str, rows: RowsSpec, first: "First") -> Iterator[Problem]:
    """A set with no row in one of its splits, which its stage would refuse. Files are read until both splits have one,
    as far as there is time; another source is checked if its first rows are all of its rows."""
    from baton.tasks.data.documents import split_of
    from baton.tasks.rows.rows import with_places

    if rows.documents or not 0 < rows.held_out < 1:
        return
    is_local = rows.path is not None and not is_bucket(rows.path)
    if not is_local and (first.faults or len(first.rows) >= MOST_SEEN):
        return
    found = (row for _, row in with_places(rows)) if is_local else iter(first.rows)
    ends, count, keys, splits = time.monotonic() + LOOK_S, 0, set[str](), set[str]()
    for row in found:
        count += 1
        keys.add(key := split_key(row, rows.seed))
        splits.add(split_of(key, rows.held_out))
        if len(splits) > 1 or time.monotonic() > ends:
            return
    large_enough = [share for share in SHARES if len({split_of(key, share) for key in keys}) > 1]
    way_out = f"{large_enough[0]:g} holds out some, 0" if large_enough else "0 holds out"
    held_out = count if "held_out" in splits else 0
    yield Problem(
        f"data.{name}.held_out",
        rows.held_out,
        f"a fraction with rows in both splits: {held_out} of the {count} rows of data.{name} are held out, by a hash "
        f"of the prompt (distinct prompts: {len(keys)}); {way_out} none, 1 all",
    )


def _note_few_held_out(name: str, spec: EvaluatorSpec, rows: RowsSpec, first: "First") -> None:
    """Warn if a set that was read to its end holds out fewer rows than an evaluator's `prompts`."""
    from baton.tasks.data.documents import split_of

    if rows.documents or first.faults or len(first.rows) >= MOST_SEEN:
        return
    count = sum(split_of(split_key(row, rows.seed), rows.held_out) == "held_out" for row in first.rows)
    of_all = f"{count} of the {len(first.rows)} rows of data.{spec.data} are held out"
    if "prompts" in spec.model_fields_set and count < spec.prompts:
        more = f"raise data.{spec.data}.held_out, or lower prompts"
        say_once(f"evaluate.{name}.prompts: {spec.prompts}: {of_all}: {more}")


# columns that usually have the completion of a prompt
ANSWERED = ("answer", "solution", "response", "output", "target", "ground_truth")


def _kind(step: ResolvedStage, first: "First", rows: RowsSpec) -> list[Problem]:
    if first.kind is None or first.kind in step.spec.row_kinds():
        problems = step.spec.rows_problems(first.kind, first.rows) if first.kind else ()
        return [
            *_unusable(step, first, rows),
            *(problem.under(step.path) for problem in problems),
        ]
    allowed = f"rows of kind {' or '.join(step.spec.row_kinds())}; those of this set are {first.kind}"
    answers = [name for name in ANSWERED if first.rows and name in first.rows[0]]
    if first.kind == "prompt" and "prompt_completion" in step.spec.row_kinds() and answers:
        twice = f"{{completion: {answers[0]}, {answers[0]}: {answers[0]}}}"
        allowed += f". If {answers[0]} is the completion, give it both names: data.{step.spec.data}.columns: {twice}"
    return [Problem(f"{step.path}.data", step.spec.data, allowed)]


def _unusable(step: ResolvedStage, first: "First", rows: RowsSpec) -> Iterator[Problem]:
    """Rows that the stage cannot use, whatever the model is. If the set drops faulty rows, they are left out."""
    reasons = [why for row in first.rows if (why := _refusal(step, row, str(first.kind)))]
    if reasons and (rows.faulty == "refuse" or len(reasons) == len(first.rows)):
        of_all = f"{len(reasons)} of the first {len(first.rows)} rows are not: {reasons[0]}"
        yield Problem(f"{step.path}.data", step.spec.data, f"rows that it can use, or `faulty: drop`; {of_all}")


def _refusal(step: ResolvedStage, row: Row, kind: str) -> str:
    """The reason why a stage cannot use a row: it has a `label`, or cannot be split into a prompt and an answer."""
    from baton.tasks.posttrain.encode import RowRefused, prompted

    if step.spec.splits_messages and kind == "messages":
        try:
            prompted(row)
        except RowRefused as error:
            return str(error)
    return str(step.spec.refused(row, kind))


def _no_question(name: str, spec: EvaluatorSpec, first: "First") -> Iterator[Problem]:
    """Rows without a question that an evaluator could ask."""
    from baton.tasks.evaluate.questions import question_of

    try:
        for row in first.rows:
            question_of(name, row)
    except StageError as error:
        yield Problem(f"evaluate.{name}.data", spec.data, str(error))


def _encoder(context: RunContext, rows: Sequence[Row]) -> "RowEncoder | Problem | None":
    """An encoder with the tokenizer of the model that the run starts from; None if that is not on this machine."""
    model = context.specs.get("start_from")
    if model is None or is_bucket(model.model) or model.missing() or importlib.util.find_spec("transformers") is None:
        return None
    folder = model.folder()
    if folder is None:
        return None
    from baton.tasks.models.tokenizers import load
    from baton.tasks.posttrain.encode import RowEncoder

    try:
        tokenizer = load(folder, model.chat_template)
    except StageError as error:
        return Problem("start_from.model", model.model, f"a folder whose tokenizer can be loaded: {error}")
    if not tokenizer.chat_template and any(map(is_conversational, rows)):
        say_once("start_from.model has no chat template: ChatML is used, and saved with the tuned models")
    return RowEncoder(tokenizer)


def _tuned_on(step: ResolvedStage, first: "First", drops: bool, encoder: "RowEncoder", positions: int) -> list[Problem]:
    from baton.tasks.posttrain.encode import RowRefused

    limits, lengths = step.spec.limits(positions), []
    try:
        for row in first.rows:
            with suppress(*([RowRefused] if drops else [])):
                lengths.append(step.spec.encode(row, str(first.kind), encoder).lengths)
    except StageError as error:
        return [Problem(f"{step.path}.data", step.spec.data, str(error))]
    if not lengths:
        allowed = "rows that the chat template accepts; it rejects all of the first ones"
        return [Problem(f"{step.path}.data", step.spec.data, allowed)]
    too_long = [sum(length) for length in lengths if not limits.fit(*length)]
    if not too_long:
        return []
    finding = (
        f"{len(too_long)} of the first {len(lengths)} rows are longer than {limits.shown} "
        f"(the longest has {max(too_long)} tokens)"
    )
    explicit = step.spec.max_prompt_tokens and step.spec.max_new_tokens  # then leaving out many may be intended
    if len(too_long) < len(lengths) and (explicit or 2 * len(too_long) <= len(lengths)):
        say_once(f"{step.path}: {finding}: these are left out")
        return []
    allowed = (
        f"{finding}: set it and max_new_tokens (the model has {positions} positions in total), or shorten the rows"
    )
    return [Problem(f"{step.path}.max_prompt_tokens", step.spec.max_prompt_tokens, allowed)]


def _asked(name: str, spec: EvaluatorSpec, rows: Sequence[Row], encoder: "RowEncoder", positions: int) -> list[Problem]:
    """The problems of an evaluator with a prompt that the template rejects, or longer than the model's positions."""
    from baton.tasks.evaluate.questions import question_of

    try:
        prompts = [row | {"prompt": question_of(name, row)[0]} for row in rows]
        lengths = [len(encoder.prompt(row)) for row in prompts]
    except StageError as error:
        return [Problem(f"evaluate.{name}.data", spec.data, str(error))]
    too_long = [length for length in lengths if length + spec.max_new_tokens > positions]
    if not too_long:
        return []
    finding = (
        f"{len(too_long)} of the first {len(lengths)} prompts are longer than the model's {positions} positions minus "
        f"max_new_tokens (the longest has {max(too_long)} tokens)"
    )
    if len(too_long) < len(lengths):
        say_once(f"evaluate.{name}: {finding}: these are skipped")
        return []
    return [Problem(f"evaluate.{name}.max_new_tokens", spec.max_new_tokens, f"fewer, or shorter rows: {finding}")]
