"""The data and settings that a metric was measured with.

Values are comparable only if they were measured on the same data with the same settings: an evaluator's rows and its
parameters, or the held-out text of the first corpus.
"""

from collections.abc import Mapping
from itertools import pairwise

BITS = "bits_per_byte"
SHARED_PARAMETERS = ("seed", "max_model_len")  # parameters of an evaluation that apply to all its evaluators

Setting = tuple[tuple[str, str], ...]  # sorted pairs of names and values


def setting(metric: str, params: Mapping[str, str], inputs: Mapping[str, str], model: str) -> Setting:
    """The data and settings that determine a metric besides the `model` (a digest). `params` and `inputs` are those of
    the evaluation's run."""
    evaluator = metric.partition(".")[0]
    relevant = {
        name: value for name, value in params.items() if name.startswith(f"{evaluator}.") or name in SHARED_PARAMETERS
    }
    if metric == BITS:
        data = {name: digest for name, digest in inputs.items() if name == "corpora.0"}
    else:
        sets = sorted({value for name, value in params.items() if name.endswith(".data") and value != "null"})
        rows = sets.index(relevant[f"{evaluator}.data"]) if relevant.get(f"{evaluator}.data") in sets else None
        data = {name: digest for name, digest in inputs.items() if rows is None or name == f"rows.{rows}"}
        data = {name: digest for name, digest in data.items() if name.startswith("rows.")}
    known = data or {name: digest for name, digest in inputs.items() if digest != model and name != "model.base"}
    return tuple(sorted((relevant | known).items()))


def breaks_of(settings: Mapping[int, Setting]) -> list[int]:
    """The steps, among those with a value, at which the data or settings of the measurement change."""
    in_order = sorted(settings.items())
    return [step for (_, before), (step, after) in pairwise(in_order) if before != after]
