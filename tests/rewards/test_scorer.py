"""The scoring of completions by users' functions in subprocesses."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from baton.tasks.core.job import StageError
from baton.tasks.rewards.scorer import LARGEST, Scorer, Scores, refuse_reserved, total
from baton.tasks.rewards.spec import RewardSpec

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A function that writes a user's file to the current directory."""
    monkeypatch.chdir(tmp_path)

    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return written


def scored(*rewards: Any, **batch: Any) -> Scores:
    with Scorer([RewardSpec.model_validate(reward) for reward in rewards]) as scorer:
        return scorer.score(**{"prompts": ["p"] * len(batch["completions"]), **batch})


# Results


def test_several_rewards_and_their_weighted_sum(write: Write) -> None:
    write(
        "sums.py",
        "def right(completions, answer, **columns):\n"
        "    return [float(one == each) for one, each in zip(completions, answer)]\n"
        "def short(completions):\n"
        "    return [-len(one) for one in completions]\n",
    )

    scores = scored(
        "sums.py:right", {"function": "sums.py:short", "weight": 0.1},
        completions=["4", "22"], columns={"answer": ["4", "4"]},
    )  # fmt: skip

    assert scores.rewards == {"right": [1.0, 0.0], "short": [-1.0, -2.0]}
    assert scores.total == pytest.approx([0.9, -0.2])


def test_none_is_left_out_of_the_sum_and_the_sum_of_none_is_none(write: Write) -> None:
    write("two.py", "def a(completions): return [1, None, None]\ndef b(completions): return [None, 2, None]\n")

    assert scored("two.py:a", {"function": "two.py:b", "weight": 2.0}, completions=["", "", ""]).total == [1, 4, None]


def test_a_sum_that_is_not_finite_is_an_error(write: Write) -> None:
    write("huge.py", "def f(completions): return [1e308] * len(completions)\n")
    with pytest.raises(StageError, match=r"the weighted sum for completion 1 is inf: lower values or weights"):
        scored({"function": "huge.py:f", "weight": 1000}, completions=["a"])


@pytest.mark.parametrize("value", [1e16, -1e30, 1e300])
def test_a_sum_whose_square_training_cannot_hold_is_an_error(value: float) -> None:
    match = RewardSpec.model_validate("match")
    assert total([match], {"match": [1e15, None, -1e15]}, 3) == [1e15, None, -1e15]
    message = f"completion 2 is {value}: lower values or weights, to a sum from -1e+15 to 1e+15"
    with pytest.raises(StageError, match=re.escape(message)):
        total([match], {"match": [0.0, value]}, 2)


def test_the_largest_sums_have_a_standard_deviation_in_float32() -> None:
    assert np.isfinite(np.array([LARGEST, -LARGEST] * 500_000, np.float32).std())


def test_sums_are_trl_s() -> None:
    specs = [
        RewardSpec.model_validate({"match": {}, "name": name, "weight": weight})
        for name, weight in (("a", 0.5), ("b", -2.0))
    ]
    rewards: dict[str, list[float | None]] = {"a": [1.0, None, 0.25], "b": [0.5, 1.0, None]}
    stacked = np.array([[np.nan if x is None else x for x in rewards[name]] for name in "ab"]).T

    trl = np.nansum(stacked * [0.5, -2.0], axis=1)

    assert total(specs, rewards, 3) == trl.tolist()


def test_two_files_of_one_name_do_not_mix(write: Write) -> None:
    write("a/rewards.py", "from words import x\ndef f(completions): return [x] * len(completions)\n")
    write("a/words.py", "x = 1\n")
    write("b/rewards.py", "from words import x\ndef f(completions): return [x] * len(completions)\n")
    write("b/words.py", "x = 2\n")

    scores = scored(
        {"function": "a/rewards.py:f", "name": "a"}, {"function": "b/rewards.py:f", "name": "b"}, completions=[""]
    )

    assert scores.rewards == {"a": [1.0], "b": [2.0]}


@pytest.mark.parametrize(("call", "kind"), [("log_metric('acc', {})", "metrics"), ("log_extra('acc', [{}])", "extra")])
def test_two_files_do_not_log_under_one_name(write: Write, call: str, kind: str) -> None:
    for name, value in (("one", 1.0), ("two", 0.0)):
        body = f"{call.format(value)}; return [1]"
        write(f"{name}.py", f"def {name}(completions, log_metric, log_extra): {body}\n")
    with pytest.raises(StageError, match=rf"two and a reward of another file log {kind} of the same name, acc"):
        scored("one.py:one", "two.py:two", prompts=["p"], completions=["a"])


def test_a_function_keeps_what_it_holds_between_calls(write: Write) -> None:
    write(
        "count.py",
        "seen = []\ndef f(completions):\n    seen.extend(completions)\n    return [len(seen)] * len(completions)\n",
    )

    with Scorer([RewardSpec.model_validate("count.py:f")]) as scorer:
        scorer.score(["p"], ["x"])
        assert scorer.score(["p"], ["y"]).total == [2.0]


def test_what_a_reward_remembers_goes_into_a_checkpoint(write: Write, tmp_path: Path) -> None:
    write(
        "new.py",
        "class New:\n"
        "    def __init__(self): self.seen = []\n"
        "    def __call__(self, completions, **_):\n"
        "        worth = [float(one not in self.seen) for one in completions]\n"
        "        self.seen += completions\n"
        "        return worth\n"
        "    def state_dict(self): return {'seen': self.seen}\n"
        "    def load_state_dict(self, state): self.seen = state['seen']\n"
        "new = New()\n",
    )
    rewards = [RewardSpec.model_validate("new.py:new"), RewardSpec.model_validate("diversity")]

    with Scorer(rewards) as scorer:
        scorer.score(["p"], ["said"])
        scorer.save(tmp_path)
    with Scorer(rewards) as again:
        again.load(tmp_path)
        scores = again.score(["q", "r"], ["said", "other"])

    assert scores.rewards == {"new": [0.0, 1.0], "diversity": [0.5, 1.0]}


def test_a_function_prints_where_it_likes(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    write(
        "loud.py",
        "import os\nprint('on import')\n"
        "def f(completions):\n    os.system('echo child')\n    print('hello')\n    return [1]\n",
    )

    assert scored("loud.py:f", completions=["x"]).total == [1.0]
    assert set(capfd.readouterr().err.split("\n")) >= {"on import", "hello", "child"}


def test_any_text_reaches_a_function(write: Write) -> None:
    write("same.py", "def f(completions, text): return [float(a == b) for a, b in zip(completions, text)]\n")
    texts = ["", "\ud800", "\x00", "\u2028\n\r", "𝄞" * 100_000, '{"answer": 1}']

    assert scored("same.py:f", completions=texts, columns={"text": texts}).total == [1.0] * len(texts)


# Separation from the trainer


def test_a_function_sees_no_secret_of_the_environment(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        "env.py",
        "import os\ndef f(completions): return [float('SECRET_KEY' in os.environ), float('PATH' in os.environ)]\n",
    )
    monkeypatch.setenv("SECRET_KEY", "x")

    assert scored("env.py:f", completions=["", ""]).total == [0.0, 1.0]
    assert scored({"function": "env.py:f", "environment": ["SECRET_KEY"]}, completions=["", ""]).total == [1.0, 1.0]


def test_a_function_does_not_find_baton_s_own_packages(write: Write) -> None:
    write(
        "ours.py",
        "import importlib.util\ndef f(completions): return [float(importlib.util.find_spec('workflows') is None)]\n",
    )

    assert scored("ours.py:f", completions=[""]).total == [1.0]


def test_completions_are_not_executed(write: Write, tmp_path: Path) -> None:
    write("plain.py", "def f(completions): return [float(len(one)) for one in completions]\n")
    attack = f"$(touch {tmp_path}/ran)`touch {tmp_path}/ran`';\n__import__('os').system('touch {tmp_path}/ran')"

    assert scored("plain.py:f", "match", completions=[attack], columns={"answer": [attack]}).total == [len(attack) + 1]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_function_may_use_processes_of_its_own(write: Write, start: str) -> None:
    write(
        "many.py",
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "def length(text): return float(len(text))\n"
        "def f(completions):\n"
        f"    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('{start}')) as pool:\n"
        "        return list(pool.map(length, completions))\n",
    )

    assert scored("many.py:f", completions=["a", "bc"]).total == [1.0, 2.0]


def test_functions_end_with_their_children(write: Write) -> None:
    write(
        "family.py",
        "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        "def f(completions): return [float(child.pid)]\n",
    )

    (pid,) = scored("family.py:f", completions=[""]).total

    assert pid is not None and gone(int(pid))


def test_children_that_are_left_do_not_keep_anyone_waiting(write: Write) -> None:
    write("left.py", "import os, time\ndef f(completions):\n    os.fork() or time.sleep(600)\n    os._exit(1)\n")

    with pytest.raises(StageError, match="ended with exit code 1"):
        scored("left.py:f", completions=[""])


LEAVES = """
import os, subprocess, sys, time
def f(completions):
    for command in completions:
        child = subprocess.Popen(["setsid", "sh", "-c", command], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            time.sleep(600)
        os._exit(0)
    return [1.0] * len(completions)
"""


def test_functions_end_with_what_has_left_their_session(write: Write) -> None:
    write("daemons.py", LEAVES)
    before = descendants()

    with Scorer([RewardSpec.model_validate("daemons.py:f")]) as scorer:
        scorer.score(["p", "p"], ["sleep 600 & sleep 600", "trap '' TERM HUP; sleep 600"])
        until = time.monotonic() + 30
        while len(descendants() - before) < 6 and time.monotonic() < until:  # waits until the shells have started
            time.sleep(0.05)
        assert len(descendants() - before) >= 6
        daemons = orphans()

    assert orphans() - daemons == set() == descendants() - before


def descendants() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


def orphans() -> set[int]:
    """Return the processes of this file's functions whose parent has ended."""
    return {
        each.pid
        for each in psutil.process_iter(["ppid", "cmdline"])
        if each.info["ppid"] == 1 and {"baton.tasks.rewards.worker", "600"} & {*(each.info["cmdline"] or ())}
    }


@pytest.mark.parametrize("how", ["import os; os.killpg(0, 9)", "import os; os.kill(os.getppid(), 9)"])
def test_functions_that_kill_more_than_themselves_leave_no_process(write: Write, how: str) -> None:
    write("kills.py", f"def f(completions):\n    {how}\n    import time; time.sleep(600)\n")
    before = descendants() | orphans()

    with pytest.raises(StageError, match="the process of reward f was killed by SIGKILL"):
        scored("kills.py:f", completions=[""])

    assert all(map(gone, (descendants() | orphans()) - before))


def test_functions_end_when_their_owner_is_killed(write: Write, tmp_path: Path) -> None:
    write("me.py", "import os\ndef f(completions): return [float(os.getpid())]\n")
    pid = os.fork()
    if pid == 0:
        with Scorer([RewardSpec.model_validate("me.py:f")]) as scorer:
            (tmp_path / "pid").write_text(str(scorer.score([""], [""]).total[0]))
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)

    assert gone(int(float((tmp_path / "pid").read_text())))


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


# Errors


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return [1 / (n - 3) for n in map(len, completions)]",
         r"reward f raised ZeroDivisionError: division by zero \(bad.py, line 2: return \[1 / \(n - 3\).*\), for row 2 "
         r"of 3 \(prompt 'p', completion 'xyz'\)"),
        ("raise ValueError(completions[2])", r"ValueError: z \(bad.py, line 2: .*\), for row 1 of 3"),
        ("raise KeyError('k') if len(completions) > 1 else SystemExit(3)", r"for row 1 of 3"),
        ("if len(completions) > 1: raise KeyError('k')\n    return [1]",
         r"KeyError: 'k' \(bad.py, line 2: .*these 3 rows together, but for none of them alone"),
        ("return [1.0]", "reward f returned 1 rewards for 3 completions"),
        ("return 1.0", "reward f returned 1.0: expected a list of a number or None per completion"),
        ("return None", "reward f returned None: expected a list"),
        ("return 'abc'", "reward f returned 'abc': expected a list"),
        ("return [1, 'good', 1]", r"reward f returned 'good', which is neither a number nor None, for row 2 of 3"),
        ("return [1, 2, float('nan')]", "reward f returned nan for row 3 of 3 .*return None where"),
        ("return [10 ** 400, 2, 3]", "reward f returned inf for row 1 of 3"),
        ("import os; os._exit(7)", "the process of reward f ended with exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", r"the process of reward f was killed by SIGKILL \(out of memory\?"),
        ("import os; os.kill(os.getpid(), 15)", "the process of reward f was killed by SIGTERM"),
        ("import os; os.abort()", "the process of reward f was killed by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "the process of reward f was killed by SIGSEGV"),
        ("import os, time; os.closerange(3, 64); time.sleep(0.2); os._exit(5)",
         "the process of reward f ended with exit code 5"),
        ("import os\n    for n in range(3, 9):\n        try: os.write(n, b'garbage\\n')\n        except OSError: pass",
         "the process of reward sent no message, but 'garbage"),
        ("bytearray(5 << 30)", r"raised MemoryError \(bad.py, line 2: bytearray.*`memory_gb`"),
        ("class E(Exception):\n        def __str__(self): raise self\n    raise E", "raised E: its text raises E"),
        ("class L(list):\n        def __len__(self): raise KeyError('x')\n    return L()",
         "returned an object of L that raises KeyError"),
        ("import asyncio; raise asyncio.CancelledError", r"raised CancelledError \(bad.py, line 2: .*for row 1"),
        ("import nowhere_at_all", r"ModuleNotFoundError: No module named 'nowhere_at_all' \(bad.py, line 2"),
    ],
)  # fmt: skip
def test_a_function_that_fails(write: Write, body: str, words: str) -> None:
    write("bad.py", f"def f(completions):\n    {body}\n")

    with pytest.raises(StageError, match=words):
        scored("bad.py:f", completions=["x", "xyz", "z"])


@pytest.mark.parametrize(
    "stuck", ["while True: pass", "import re; re.match('(a+)+b', 'a' * 60)", "import time; time.sleep(600)"]
)
def test_a_function_that_takes_too_long_is_ended_and_its_line_named(write: Write, stuck: str) -> None:
    write("slow.py", f"def f(completions):\n    return helper()\n\ndef helper():\n    {stuck}\n")
    start = time.monotonic()

    with pytest.raises(
        StageError, match=r"reward f did not finish within 0.5 s \(its timeout_s\).*slow.py, line 5, in helper"
    ):
        scored({"function": "slow.py:f", "timeout_s": 0.5}, completions=["x"])
    assert time.monotonic() - start < 8


@pytest.mark.parametrize("which", ["os.getpid()", "os.getppid()"])
def test_a_function_that_is_stopped_is_ended_after_its_time_limit(
    write: Write, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("stops.py", f"import os, time\ndef f(completions):\n    os.kill({which}, 19)\n    time.sleep(99)\n")
    monkeypatch.setattr("baton.tasks.rewards.user_process.GRACE_S", 1.0)
    start = time.monotonic()

    with pytest.raises(StageError, match=r"reward f did not finish within 0.5 s \(its timeout_s\)"):
        scored({"function": "stops.py:f", "timeout_s": 0.5}, completions=["x" * 200_000])
    assert time.monotonic() - start < 15


def test_a_text_of_an_exception_is_cut_and_shows_no_control_characters(write: Write) -> None:
    write("long.py", "def f(completions):\n    raise ValueError('\\x1b[2J\\x00\\u202e' + 'x' * 5_000_000)\n")

    with pytest.raises(StageError) as raised:
        scored("long.py:f", completions=["\x1b[2J"])

    assert r"ValueError: \x1b[2J\x00\u202exxx" in str(raised.value) and "5,000,006 characters" in str(raised.value)
    assert len(str(raised.value)) < 3000 and str(raised.value).isprintable()


def test_each_reward_of_a_file_has_its_own_arguments(write: Write) -> None:
    write(
        "changes.py",
        "def first(prompts, completions, answer, completion_ids):\n"
        "    completions.sort(); prompts[0][0]['content'] = 'no'; answer.clear(); completion_ids[0].append(1)\n"
        "    return [0, 0]\n"
        "def second(prompts, completions, answer, completion_ids):\n"
        "    right = (['b', 'a'], 'p', ['1', '2'], [[5], [6]])\n"
        "    return [float((completions, prompts[0][0]['content'], answer, completion_ids) == right)] * 2\n",
    )

    scores = scored(
        "changes.py:first", "changes.py:second", prompts=[[{"role": "user", "content": "p"}]] * 2,
        completions=["b", "a"], columns={"answer": ["1", "2"]}, completion_ids=[[5], [6]],
    )  # fmt: skip

    assert scores.rewards["second"] == [1.0, 1.0]


def test_of_an_asynchronous_function_that_takes_too_long_no_line_of_ours_is_named(write: Write) -> None:
    write("slow.py", "import asyncio\nasync def f(completions):\n    await asyncio.sleep(600)\n")

    with pytest.raises(StageError, match=r"did not finish within 0.5 s .*: stuck at selectors\.py"):
        scored({"function": "slow.py:f", "timeout_s": 0.5}, completions=["x"])


def test_a_figure_that_is_no_number_is_the_function_s_fault(write: Write) -> None:
    """Among the trainer's metrics, it would look as if the training had diverged."""
    write("bad.py", "def f(completions, log_metric):\n    log_metric('share', float('nan'))\n")

    with pytest.raises(StageError, match=r"reward f raised ValueError: log_metric\('share', nan\).*bad.py, line 2"):
        scored("bad.py:f", completions=["x"])


def test_an_import_that_fails_says_where(write: Write) -> None:
    write("bad.py", "import json\njson.loads('{')\ndef f(completions): ...\n")

    with pytest.raises(StageError, match=r"reward f: importing bad raises JSONDecodeError: .*\(bad.py, line 2"):
        scored("bad.py:f", completions=[""])


def test_columns_that_are_not_there_are_named_before_anything_is_called(write: Write) -> None:
    write("needs.py", "def f(completions, target, margin=1, **columns): ...\n")
    specs = [
        RewardSpec.model_validate(words)
        for words in ("needs.py:f", "match", {"regex": {"pattern": "a", "column": "x"}})
    ]

    with Scorer(specs) as scorer:
        assert [str(problem) for problem in scorer.needs(["task"])] == [
            "f: ['task']: needs rows with a column target",
            "match: ['task']: needs rows with a column answer or solution or ground_truth or completion",
            "regex: ['task']: needs rows with a column x",
        ]
        assert scorer.needs(["target", "solution", "x"]) == []
        with pytest.raises(StageError, match=r"reward f: \['answer'\]: needs rows with a column target"):
            scorer.score(["p"], ["c"], {"answer": ["4"]})


def test_a_column_that_only_some_rows_have_is_refused_by_what_requires_it(write: Write) -> None:
    write("partly.py", "def f(completions, target): ...\ndef g(completions, target=None): ...\n")
    rows = [{"prompt": "a", "target": "b"}, {"prompt": "a", "answer": "b"}]
    with Scorer([RewardSpec.model_validate("partly.py:f")]) as scorer:
        with pytest.raises(StageError, match=r"reward f needs .* target, which some of the 2 rows lack"):
            scorer.refuse_partial(rows)
        scorer.refuse_partial([row | {"target": None} for row in rows])
    with Scorer([RewardSpec.model_validate("partly.py:g")]) as scorer:
        scorer.refuse_partial(rows)
    with Scorer([RewardSpec.model_validate("match")]) as scorer, pytest.raises(StageError, match="answer or solution"):
        scorer.refuse_partial(rows)


def test_a_column_with_the_name_of_what_rewards_get_anyway_is_refused() -> None:
    with pytest.raises(StageError, match=r"column environments of the rows: .*\{my_environments: environments\}"):
        refuse_reserved([{"prompt": "a", "environments": "b"}])
    refuse_reserved([{"prompt": "a", "answer": "b"}])


def test_every_function_that_cannot_be_had_is_named(write: Write) -> None:
    write("one.py", "a = 1\ndef b(text): ...\n")
    write("two.py", "import nowhere_at_all\ndef c(completions): ...\n")

    with pytest.raises(StageError) as raised:
        scored("one.py:a", "one.py:b", "two.py:c", completions=[])

    assert [line.split()[:2] for line in str(raised.value).splitlines()] == [
        ["reward", "a:"],
        ["reward", "b"],
        ["reward", "c:"],
    ]


def test_what_cannot_be_a_reward_is_an_error_before_it_is_called(write: Write) -> None:
    write("other.py", "other = lambda text: 1.0\n")

    with pytest.raises(StageError, match=r"other takes \(text\): a reward must take completions"):
        scored("other.py:other", completions=[""])


def test_columns_of_another_length_and_of_no_json_are_refused(write: Write) -> None:
    write("plain.py", "def f(completions): return [1]\n")

    with pytest.raises(StageError, match=r"1 completions, but \{'answer': 2\}"):
        scored("plain.py:f", completions=[""], columns={"answer": ["4", "5"]})
    with pytest.raises(StageError, match=r"columns may contain text, numbers, lists and objects: .*bytes"):
        scored("plain.py:f", completions=[""], columns={"answer": [b"4"]})


def test_a_process_that_has_ended_answers_no_more(write: Write) -> None:
    write("ends.py", "import os\ndef f(completions): os._exit(1)\n")

    with Scorer([RewardSpec.model_validate("ends.py:f")]) as scorer:
        for _ in range(2):
            with pytest.raises(StageError, match="ended with exit code 1"):
                scorer.score(["p"], ["x"])
