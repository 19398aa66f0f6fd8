"""Rewards for a next statement: the checks of statements.py, each 0 or 1, and `quality`, their mean."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from statements import Prompt, Verdict, check


def parses(prompts: list[str], completions: list[str], module_names: list[list[str]], **_: Any) -> list[float]:
    return [float(each.parses) for each in _verdicts(prompts, completions, module_names)]


def not_trivial(prompts: list[str], completions: list[str], module_names: list[list[str]], **_: Any) -> list[float]:
    return [float(each.not_trivial) for each in _verdicts(prompts, completions, module_names)]


def defined(prompts: list[str], completions: list[str], module_names: list[list[str]], **_: Any) -> list[float]:
    return [float(each.defined) for each in _verdicts(prompts, completions, module_names)]


def uses_context(prompts: list[str], completions: list[str], module_names: list[list[str]], **_: Any) -> list[float]:
    return [float(each.uses_context) for each in _verdicts(prompts, completions, module_names)]


def all_checks(prompts: list[str], completions: list[str], module_names: list[list[str]], **_: Any) -> list[float]:
    return [float(each.all_checks) for each in _verdicts(prompts, completions, module_names)]


def quality(prompts: list[str], completions: list[str], module_names: list[list[str]], **_: Any) -> list[float]:
    """The share of the four checks that a statement passes."""
    return [sum(each.four) / 4 for each in _verdicts(prompts, completions, module_names)]


def _verdicts(prompts: Sequence[str], completions: Sequence[str], names: Sequence[Sequence[str]]) -> list[Verdict]:
    return [_verdict(*each) for each in zip(prompts, completions, map(tuple, names), strict=True)]


@lru_cache(4096)
def _verdict(prompt: str, completion: str, names: tuple[str, ...]) -> Verdict:
    return check(Prompt(prompt, frozenset(names)), completion)
