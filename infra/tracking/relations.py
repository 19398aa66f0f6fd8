"""How an artifact is related to the inputs of the run that output it.

Only some runs make an artifact *from* their inputs. An evaluation measures a model, a publication names one and
describes others on its card, and choosing hands on one of its inputs as it is.
"""

from collections.abc import Mapping

MADE, HANDED_ON, DESCRIBED = "made from", "handed on", "describes"
# by the kind of the output
RELATIONS = {
    "choice": "selected from",
    "conversion_audit": "measured",
    "decision": "compared",
    "endpoint": "serves",
    "eval_report": "measured",
    "promotion": "promoted",
    "published_model": "publishes",
    "report": "reports on",
}
# inputs whose content an artifact does not have: rows that it must not contain, earlier text, what was removed
_WITHOUT = ("against", "known", "newest")
CONTAINS = (MADE, "publishes")  # relations of an artifact that has the other's content, or content derived from it
_MODEL_ITSELF = ("endpoint", "published_model")  # have one of their inputs as the model, and only describe the others
_MODEL = ("model", "model.base")


def relation(kind: str | None, output: str | None, name: str, inputs: Mapping[str, str]) -> str:
    """The relation of an artifact of this kind and digest to the input `name` among `inputs` (name -> digest)."""
    if output in inputs.values():
        return HANDED_ON
    return RELATIONS.get(kind or "", MADE) if name in sources(kind, output, inputs) else DESCRIBED


def sources(kind: str | None, output: str | None, inputs: Mapping[str, str]) -> Mapping[str, str]:
    """The inputs that are ancestors of an artifact of this kind and digest. Empty if the output is one of the inputs:
    the run selected that artifact instead of making it."""
    if output in inputs.values():
        return {}
    if kind not in _MODEL_ITSELF or "model" not in inputs:
        return inputs
    return {name: digest for name, digest in inputs.items() if name in _MODEL}


def contents(kind: str | None, output: str | None, inputs: Mapping[str, str]) -> Mapping[str, str]:
    """The ancestors among the inputs whose content, or content derived from it, is in an artifact."""
    of = sources(kind, output, inputs)
    return {name: digest for name, digest in of.items() if name.partition(".")[0] not in _WITHOUT}
