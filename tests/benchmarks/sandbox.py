"""`python -m tests.benchmarks.sandbox [--programs N] [--rounds N] [--workers N]`

Programs per second in a pool of sandboxes, compared with the same programs as plain `python -c`, with the same number
of programs at a time. Each program is a small function and its test in one process; `code_tests` runs the test in a
second process. The CPU time, which other work on the machine hardly affects, includes all processes and the kernel's
work for them.
"""

import argparse
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from baton.infra.sandbox.pool import Pool
from baton.infra.sandbox.program import Limits, Program
from baton.infra.sandbox.sandbox import KINDS, Sandbox, unusable
from baton.tasks.rewards.builtin.code_tests import CodeTests
from tests.benchmarks.harness import median_ratio, report, side_by_side


def source(number: int) -> str:
    return f"def add(a, b):\n    return a + b\nassert add({number}, 1) == {number + 1}\nprint({number})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    compare(arguments.programs, arguments.rounds, arguments.workers)


def compare(count: int, rounds: int, workers: int) -> None:
    sources = [source(number) for number in range(count)]

    def in_a(pool: Pool) -> Callable[[], None]:
        def run() -> None:
            results = pool.map([Program(text) for text in sources])
            assert [int(result.stdout) for result in results] == list(range(count))

        return run

    def tested(reward: CodeTests) -> Callable[[], None]:
        parts = [text.partition("assert") for text in sources]
        programs, tests = [part[0] for part in parts], [f"assert{part[2]}" for part in parts]

        def run() -> None:
            prompts = [""] * count
            assert (
                reward(prompts=prompts, completions=programs, tests=tests, log_metric=lambda *_: None) == [1.0] * count
            )

        return run

    def plain(text: str) -> None:
        subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)

    with ExitStack() as inside:
        threads = inside.enter_context(ThreadPoolExecutor(workers))
        contenders: dict[str, Callable[[], object]] = {"python -c": lambda: list(threads.map(plain, sources))}
        for kind in KINDS:
            if problem := unusable(kind):
                print(f"{kind}: not measured: {problem}")
            else:
                contenders[kind] = in_a(inside.enter_context(Pool(Sandbox(Limits(), kind=kind), workers)))
        contenders["code_tests"] = tested(inside.enter_context(closing(CodeTests(workers=workers))))
        side_by_side(contenders, 1)  # warm up
        used = dict.fromkeys(contenders, 0.0)
        timed = {name: _counting(used, name, work) for name, work in contenders.items()}
        times = side_by_side(timed, rounds)
    speeds = {name: count / statistics.median(values) for name, values in times.items()}
    per_cpu_s = {name: count * rounds / seconds for name, seconds in used.items()}
    ratios = {kind: median_ratio(times["python -c"], times[kind]) for kind in contenders if kind != "python -c"}
    report(
        "sandbox",
        [
            ("programs", f"{count}, {workers} at a time, {rounds} rounds"),
            *((name, f"{speeds[name]:.0f} programs/s, {per_cpu_s[name]:.0f} per CPU-second") for name in speeds),
            *((f"{kind} / python -c", f"{ratio:.2f}") for kind, ratio in ratios.items()),
        ],
        {f"{name.replace(' -c', '')}_per_s": speed for name, speed in speeds.items()}
        | {f"{name.replace(' -c', '')}_per_cpu_s": speed for name, speed in per_cpu_s.items()}
        | {f"{kind}_over_python": ratio for kind, ratio in ratios.items()},
    )


def _counting(used: dict[str, float], name: str, work: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        before = _cpu_s()
        work()
        used[name] += _cpu_s() - before

    return run


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended children and their descendants."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


if __name__ == "__main__":
    main()
