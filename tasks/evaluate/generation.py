"""Sampling parameters of vLLM for the `generation_kwargs` of an lm-eval task.

As lm-eval documents (normalize_gen_kwargs in lm_eval/models/utils.py of 0.4.13), sampling is greedy unless `do_sample`
is true or the temperature is above 0; with `do_sample: false` it is greedy at any temperature. With `do_sample` alone
the temperature is 1, the default of Transformers and vLLM.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from baton.tasks.core.job import StageError

NEW_TOKENS = 256  # lm-eval's default of max_gen_toks
# Names in Transformers' generate() -> vLLM's names
RENAMED = {"min_new_tokens": "min_tokens"}
# Options of generate() that apply only to beam search, or do not change the result
WITHOUT_EFFECT = ("early_stopping", "length_penalty", "use_cache", "num_beam_groups", "diversity_penalty")
ONE = ("num_beams", "num_return_sequences", "best_of", "n")  # options that have no effect if they are 1
TOP_K_OFF = (None, 0, -1)  # values of top_k without a limit, in Transformers and vLLM
Check = tuple[Callable[[Any], bool], str]
FLAG: Check = (lambda value: isinstance(value, bool), "true or false")


def _number(least: float, most: float = inf, integer: bool = False, above: bool = False) -> Check:
    """Return a check for numbers. `above`: whether `least` itself is not allowed."""
    kinds = (int,) if integer else (int, float)
    shown = f"{'above' if above else 'from'} {least:g}" + (f" to {most:g}" if most < inf else "")
    return (
        lambda value: (
            type(value) in kinds and least <= value <= most and abs(value) < inf and (value > least or not above)
        )
    ), f"a {'whole ' if integer else ''}number {shown}"


def _list(kind: type) -> Check:
    named = "ids of tokens" if kind is int else "texts that are not empty"
    return lambda value: isinstance(value, list) and all(type(each) is kind and each != "" for each in value), named


PARAMETERS: dict[str, Check] = {  # with checks of the values that vLLM accepts
    "temperature": _number(0, 2),
    "top_p": _number(0, 1, above=True),
    "top_k": _number(1, integer=True),
    "min_p": _number(0, 1),
    "repetition_penalty": _number(0, above=True),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "min_tokens": _number(0, integer=True),
    "stop_token_ids": _list(int),
    "bad_words": _list(str),
    "ignore_eos": FLAG,
    "skip_special_tokens": FLAG,
    "spaces_between_special_tokens": FLAG,
}


@dataclass(frozen=True)
class Generation:
    """Limits and sampling options of a generation request."""

    new_tokens: int
    stop: list[str]  # a text ends before the first of these
    options: dict[str, Any]  # options of baton.tasks.vllm.engine.sample


def generation(given: Mapping[str, Any], end_of_text: str) -> Generation:
    """Convert a task's options. Raises StageError for options that vLLM's sampling does not have."""
    if not isinstance(given, Mapping):  # the YAML file may have any value
        raise StageError(f"generation_kwargs {given!r}: options by name, such as {{max_gen_toks: 64}}")
    known = {name: value for name, value in given.items() if value is not None}
    if not FLAG[0](known.get("do_sample", False)):
        raise StageError(f"generation_kwargs.do_sample: {known['do_sample']!r}: {FLAG[1]}")
    try:
        kwargs: dict[str, Any] = dict(normalize_gen_kwargs(known, NEW_TOKENS))
    except (TypeError, ValueError) as error:
        raise StageError(f"generation_kwargs {dict(given)!r}: {error}") from error
    stop = [text for text in handle_stop_sequences(kwargs.pop("until"), eos=end_of_text) if text]
    if wrong := [text for text in stop if not isinstance(text, str)]:
        raise StageError(f"generation_kwargs.until: {wrong[0]!r}: texts at which the generation ends; quote it")
    new_tokens = int(kwargs.pop("max_gen_toks"))
    if new_tokens < 1:
        raise StageError(f"generation_kwargs.max_gen_toks: {new_tokens}: at least 1 token")
    kwargs.setdefault("temperature", 1.0 if kwargs["do_sample"] else 0.0)
    del kwargs["do_sample"]
    kwargs = {RENAMED.get(name, name): value for name, value in kwargs.items() if name not in WITHOUT_EFFECT}
    kwargs = {name: value for name, value in kwargs.items() if not (name in ONE and value == 1)}
    for name, value in kwargs.items():
        if name not in PARAMETERS:
            what = "1, or a task without beam search, which vLLM's sampling does not have" if name in ONE else None
            allowed = what or f"one of do_sample, until, max_gen_toks, {', '.join(PARAMETERS)}"
            raise StageError(f"generation_kwargs.{name}: {value!r}: {allowed}")
    if kwargs.get("top_k") in TOP_K_OFF:
        kwargs.pop("top_k", None)
    if kwargs["temperature"] == 0:  # vLLM refuses some of these values where they have no effect
        kwargs = {name: value for name, value in kwargs.items() if name not in ("top_p", "top_k", "min_p")}
    for name, value in kwargs.items():
        is_right, allowed = PARAMETERS[name]
        if not is_right(value):
            raise StageError(f"generation_kwargs.{name}: {value!r}: {allowed}")
    if kwargs.get("min_tokens", 0) > new_tokens:
        raise StageError(f"generation_kwargs.min_tokens: {kwargs['min_tokens']}: at most max_gen_toks ({new_tokens})")
    return Generation(new_tokens, stop, {"skip_special_tokens": True} | kwargs)
