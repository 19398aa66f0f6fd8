"""The shared code of the benchmarks: side-by-side timing, and the format of the figures.

A benchmark prints a table and, as its last line, one JSON object:
{"benchmark": name, "figures": {name: number}, "machine": …}.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    cpu_s: float
    wall_s: float
    peak_mb: float  # memory of the largest process


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def side_by_side(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contender in each round. The contenders take turns in every round, in reverse order in
    every second one, so that a change of the machine's speed favors none of them."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            times[name].append(seconds(contenders[name]))
    return times


def timed(words: list[str], **environment: str) -> Run:
    """Run Python with these arguments, and wait for all of its processes."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment
    )
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, words
    return Run(used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1e3)


def median_ratio(over: list[float], under: list[float]) -> float:
    """Return the median of the ratios of each round, in which disturbances of an entire round cancel out."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def report(benchmark: str, rows: list[tuple[str, str]], figures: dict[str, float]) -> None:
    """Print the table and the JSON line."""
    width = max(len(name) for name, _ in rows)
    print(benchmark)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    print(json.dumps({"benchmark": benchmark, "figures": rounded, "machine": machine()}), flush=True)


def machine() -> dict[str, object]:
    """Describe the machine on which the figures were measured."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:  # noqa: PTH123  not a file of ours
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
