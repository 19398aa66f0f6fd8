"""Random histories of executions, with the true ancestors of each artifact.

Executions run one after the other. Their stages make artifacts, which have equal contents more often than in practice,
reuse cached ones, choose, publish and evaluate. Each run that makes an artifact leaves a folder with a manifest, and a
stage reads one folder: that of its own execution, or else the first one. `truth` follows the manifests of these
folders.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from baton.infra.lineage.ancestry import Run

KINDS = ("corpus", "tokenized_corpus", "hf_model", "hf_model")


@dataclass(frozen=True, eq=False)
class Folder:
    """An artifact as made by one run."""

    digest: str
    kind: str
    maker: str  # id of the run
    parents: dict[str, "Folder"]  # keyed by the name of the input
    made_from: dict[str, "Folder"]  # the parents that determined the content

    @property
    def handed_on(self) -> bool:
        """Return whether the output is one of the inputs, unchanged."""
        return self.digest in {parent.digest for parent in self.parents.values()}

    def manifests(self) -> Iterator["Folder"]:
        """Generate the ancestors according to the manifests."""
        for parent in self.made_from.values():
            yield parent
            yield from parent.manifests()

    def truth(self) -> set[str]:
        """Return the digests of the ancestors."""
        return {folder.digest for folder in self.manifests()}


@dataclass
class History:
    runs: dict[str, Run] = field(default_factory=dict)
    first: dict[str, Folder] = field(default_factory=dict)  # digest -> the first folder with this digest
    cache: dict[tuple[str, ...], Folder] = field(default_factory=dict)  # keyed by kind and the digests of the inputs
    folders: list[Folder] = field(default_factory=list)
    clock: float = 1_000.0


def history(seed: int) -> History:
    dice, found = random.Random(seed), History()
    for number in range(dice.randint(1, 5)):
        _execution(dice, found, f"e{number}")
    shuffled = list(found.runs.items())
    dice.shuffle(shuffled)
    found.runs = dict(shuffled)
    return found


def _execution(dice: random.Random, past: History, name: str) -> None:
    made: dict[str, Folder] = {}  # made in this execution
    taken: dict[str, Folder] = {}  # reused from the cache

    for _ in range(dice.randint(1, 9)):
        kind = dice.choice(KINDS)
        known = {**past.first, **taken, **made}
        inputs = {f"input.{n}": dice.choice([*known.values()]) for n in range(dice.randint(0, 3)) if known}
        act = dice.choice(["make", "make", "repeat", "repeat", "choose", "publish", "evaluate"])
        if act == "repeat" and (old := [key for key in past.cache if known.keys() >= {*key[1:]}]):
            kind, *digests = dice.choice(old)
            inputs = {f"input.{n}": known[digest] for n, digest in enumerate(digests)}
        models = [folder for folder in known.values() if folder.kind == "hf_model"]
        if act in ("choose", "publish", "evaluate") and not models:
            continue
        if act == "choose":
            inputs = {f"models.{n}": model for n, model in enumerate(models)}
            _record(dice, past, name, "choose", "hf_model", dice.choice(models).digest, inputs)
        elif act == "evaluate":
            model = {"model": dice.choice(models)}
            _make(dice, past, name, "evaluate", "eval_report", inputs | model, inputs | model)
        elif act == "publish":
            model = {"model": dice.choice(models)}
            _make(dice, past, name, "publish", "published_model", inputs | model, model)
        else:
            key = (kind, *sorted(folder.digest for folder in inputs.values()))
            if key in past.cache and inputs and dice.random() < 0.7:
                folder = past.cache[key]
                _record(dice, past, name, kind, kind, folder.digest, folder.parents, cached=True)
                if not folder.handed_on:
                    taken.setdefault(folder.digest, folder)
            else:
                folder = _make(dice, past, name, kind, kind, inputs, inputs)
                past.cache.setdefault(key, folder)
                if not folder.handed_on:
                    made.setdefault(folder.digest, folder)


def _make(
    dice: random.Random, past: History, execution: str, title: str, kind: str,
    inputs: dict[str, Folder], made_from: dict[str, Folder],
) -> Folder:  # fmt: skip
    digest = f"{kind}-{dice.randint(0, 3)}" if kind in KINDS else f"{kind}-{dice.getrandbits(40)}"
    run = _record(dice, past, execution, title, kind, digest, inputs)
    folder = Folder(digest, kind, run.id, inputs, made_from)
    if not folder.handed_on:
        past.folders.append(folder)
    if digest not in folder.truth():  # otherwise it existed before
        past.first.setdefault(digest, folder)
    return folder


def _record(
    dice: random.Random, past: History, execution: str, title: str, kind: str, digest: str,
    inputs: dict[str, Folder], cached: bool = False,
) -> Run:  # fmt: skip
    past.clock += dice.choice([0.001, 1.0, 60.0])
    started = past.clock
    past.clock += 0.0 if cached else dice.choice([0.0, 0.5, 600.0])
    read = {name: folder.digest for name, folder in inputs.items()}
    id = f"{dice.getrandbits(128):032x}"
    run = Run(id, title, "FINISHED", started, past.clock, execution, cached, digest, read, kind)
    past.runs[id] = run
    return run
