"""Try rewards on the rows' own answers, and on those of other rows.

    python -m baton.tasks.reward_check.check JOB_DIR        inputs: rows.0, …, in the order of `spec.sets()`

A reward that raises ends the run. So does a reward for training that does not prefer a row's own answer; for one in an
evaluation there is a notice. Output: check.json, which has for each list its path, the number of `rows` with an answer,
and `lines`, the scores of each reward.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from baton.infra.pod import this_pod
from baton.infra.progress import say
from baton.infra.storage.durable import write_json
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.evaluate.questions import Question, question_of
from baton.tasks.posttrain.encode import prompted
from baton.tasks.reward_check.spec import RewardCheckSpec, RewardListSpec
from baton.tasks.rewards.gold import ROWS, GoldLine, attempt, faults, gold_lines, own_answer, table
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.rewards.user_process import NotInstalled
from baton.tasks.rows.stored import Row, read_rows

# Completions with which functions are called whose rows have no answers
MADE_UP = ("I do not know.", "4", '{"answer": 4}', "<answer>4</answer>", "```python\nprint(4)\n```")


def work(job: Job) -> None:
    spec = job.spec(RewardCheckSpec)
    rows = dict(zip(spec.sets(), job.input_list("rows"), strict=True))
    lists: list[dict[str, Any]] = []
    wrong: list[str] = []
    for done, one in enumerate(spec.lists):
        job.progress(done, len(spec.lists), "lists", now=one.path)
        tried = list(islice(_rows(one, rows[one.data]), ROWS))
        lines = _lines(job, one, tried)
        lists.append({"path": one.path, "data": one.data, "rows": _answered(tried), "lines": list(map(asdict, lines))})
        if not lines:
            say(f"{one.path}: nothing to try: {_why_nothing(one, lists[-1]['rows'])}")
        elif not (fault := faults(lines)):
            print(f"{one.path}: {table(lines)}", flush=True)
        elif one.required:
            wrong.append(f"{one.path}: {fault}")
        else:
            job.notice(f"{one.path}: {fault}")
    if wrong:
        raise StageError("\n".join(wrong))
    job.empty_output()
    write_json(job.output / "check.json", lists)
    every = [line for one in lists for line in one["lines"]]
    job.finish(rewards=len(every), faults=sum(bool(line["fault"]) for line in every))


def _rows(one: RewardListSpec, folder: Path) -> Iterator[Row]:
    """Yield the rows in the form in which the stage gives them to its rewards: with a prompt, and a conversation's last
    turn as completion."""
    for row in read_rows(folder, one.split):
        if one.split == "train":
            yield prompted(row)
        else:
            prompt, reference = question_of(one.path, row)
            yield Question("", row, prompt, reference, []).scored | {"prompt": prompt}


def _lines(job: Job, one: RewardListSpec, rows: list[Row]) -> list[GoldLine]:
    """Return the scores of each reward. A reward that fails ends the run. In a pod, a missing package is only a notice,
    since the image of the stage may have it."""
    try:
        lines = gold_lines(one.rewards, rows)
        compared = {line.reward for line in lines}
        _attempt(job, one, [reward for reward in one.rewards if reward.function and reward.label not in compared], rows)
        return lines
    except NotInstalled as error:
        if this_pod() is None:
            raise StageError(f"{one.path}: {error}") from error
        job.notice(f"{one.path}: could not be tried before the stage that uses them: {error}")
        return []
    except StageError as error:
        raise StageError(f"{one.path}: {error}") from error


def _attempt(job: Job, one: RewardListSpec, rewards: list[RewardSpec], rows: list[Row]) -> None:
    """Call also the functions that are not compared. If no row has an answer, completions are made up: a function that
    raises for all of them ends the run, and an error for some is a notice, since it may not occur for the model's
    completions. Raises StageError."""
    asked = [row for row in rows if "prompt" in row]
    if answered := [row for row in asked if own_answer(row) is not None]:
        return attempt(rewards, answered, own_answer)
    for reward in rewards:
        raised = [*takewhile(bool, (_raised(reward, asked, text) for text in MADE_UP))]
        if raised and len(raised) == len(MADE_UP):
            raise StageError(str(raised[0]))
        if raised:
            job.notice(f"{one.path}: the rows of data.{one.data} have no answers, and for a made-up one {raised[0]}")


def _raised(reward: RewardSpec, rows: list[Row], text: str) -> StageError | None:
    """Return the error that a reward raises for this completion of each row, if any."""

    def completion(row: Mapping[str, Any]) -> Any:
        return [{"role": "assistant", "content": text}] if isinstance(row["prompt"], list) else text

    try:
        attempt([reward], rows, completion)
    except NotInstalled:
        raise
    except StageError as error:
        return error
    return None


def _answered(rows: list[Row]) -> int:
    return sum(own_answer(row) is not None for row in rows)


def _why_nothing(one: RewardListSpec, answered: int) -> str:
    if answered < 2:
        return f"the rows of data.{one.data} have no answers"
    return "the answers are all the same, or no reward compares with one"


if __name__ == "__main__":
    main(work)
