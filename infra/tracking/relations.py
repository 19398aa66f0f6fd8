"""The relation of an artifact to the inputs of the run that output it.

Only some runs make an artifact *from* their inputs. An evaluation measures a model, a publication names one and
describes others on its card, and a choice hands on one of its inputs unchanged. Each kind of artifact declares its
relation in the `artifact.py` of its stage, and the records of its runs contain it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MADE, HANDED_ON, DESCRIBED = "made from", "handed on", "describes"
PUBLISHES = "publishes"
# inputs whose content an artifact does not have: rows that it must not contain, earlier text, what was removed
_WITHOUT = ("against", "known", "newest")


@dataclass(frozen=True)
class Relation:
    """The relation of a kind of artifact to its inputs."""

    name: str = MADE
    of: str = ""  # the input that alone has it, with its base if there is one; "": all. The others are described

    @property
    def has_content(self) -> bool:
        """Return whether the artifact has the inputs' content, or content derived from it."""
        return self.name in (MADE, PUBLISHES)

    def to(self, output: str | None, name: str, inputs: Mapping[str, str]) -> str:
        """Return the relation of the artifact with digest `output` to its input `name`; `inputs` are digests by
        name."""
        if output in inputs.values():
            return HANDED_ON
        return self.name if name in self.sources(output, inputs) else DESCRIBED

    def sources(self, output: str | None, inputs: Mapping[str, str]) -> Mapping[str, str]:
        """The inputs that are ancestors of an artifact with this digest. Empty if it is one of the inputs: the run
        selected that artifact instead of making it."""
        if output in inputs.values():
            return {}
        if not self.of or self.of not in inputs:
            return inputs
        return {name: digest for name, digest in inputs.items() if name.partition(".")[0] == self.of}

    def contents(self, output: str | None, inputs: Mapping[str, str]) -> Mapping[str, str]:
        """The ancestors among the inputs whose content, or content derived from it, is in an artifact."""
        of = self.sources(output, inputs)
        return {name: digest for name, digest in of.items() if name.partition(".")[0] not in _WITHOUT}

    def as_tags(self) -> dict[str, str]:
        """The relation as the tags of a run's record."""
        return {"relation": self.name} | ({"related_to": self.of} if self.of else {})


# of runs that were recorded before their records had it, by the kind of the output; this can go when no store from
# before 2026-12 is in use
RECORDED_BEFORE = {
    "choice": Relation("selected from"),
    "conversion_audit": Relation("measured"),
    "decision": Relation("compared"),
    "endpoint": Relation("serves", of="model"),
    "eval_report": Relation("measured"),
    "promotion": Relation("promoted"),
    "published_model": Relation(PUBLISHES, of="model"),
    "report": Relation("reports on"),
}


def recorded(kind: str | None) -> Relation:
    """The relation of a run whose record lacks it."""
    return RECORDED_BEFORE.get(kind or "", Relation())
