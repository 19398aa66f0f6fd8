"""The user's fastText classifiers.

`python -m baton.tasks.data.classifier` returns a model's labels (infra/process/child.py).

fastText crashes on damaged files, reads them forever, or fills in missing bytes with zeros. So a separate process loads
a model first and saves it again: the file is complete if the saved one has as many bytes.
"""

import resource
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from baton.infra.process.child import ChildFailed, ChildTooSlow, ask, reply
from baton.tasks.core.job import StageError
from baton.tasks.data.curate_spec import ClassifierStep, CurateStep
from baton.tasks.data.source_spec import listed

LABEL = "__label__"  # fastText's prefix
LOAD_S = 300  # limit of the time to load a model
SPARE_BYTES = 1 << 30  # needed for loading, in addition to twice the size of the file: tables of words


def check_classifiers(steps: Sequence[CurateStep]) -> None:
    """Raise StageError if a step's model is missing, damaged, no classifier, or lacks a label of `keep`."""
    for step in steps:
        if step.classifier:
            _check(step.classifier)


def _check(step: ClassifierStep) -> None:
    if problems := step.missing():  # the file may have changed since the recipe was checked
        raise StageError(f"classifier {step.model}: {problems[0].allowed}")
    try:
        labels = ask("baton.tasks.data.classifier", str(step.local_model()), LOAD_S)
    except ChildTooSlow as error:
        raise StageError(f"classifier {step.model}: not loaded within {LOAD_S} s; download it again") from error
    except ChildFailed as error:
        why = str(error).rpartition("\n")[2]
        message = f"classifier {step.model}: not a fastText classifier, or damaged ({why}); download it again"
        raise StageError(message) from error
    if unknown := sorted(set(step.keep) - set(labels)):
        raise StageError(f"classifier {step.model}: no label {', '.join(unknown)}; it has {listed(labels, most=200)}")


def classify(step: ClassifierStep) -> Callable[[str], list[tuple[str, float]]]:
    """The function that gives a text's labels with their probabilities, the largest first. Raises StorageError."""
    import fasttext

    model = fasttext.load_model(str(step.local_model()))

    def scored(text: str) -> list[tuple[str, float]]:
        labels, shares = model.predict(text.replace("\n", " "), k=-1)
        return [(label.removeprefix(LABEL), float(share)) for label, share in zip(labels, shares, strict=True)]

    return scored


def _labels(request: str, folder: Path) -> list[str]:
    """Return the labels of the model in a file. Raises ValueError or MemoryError if it is damaged, or no classifier."""
    import fasttext

    path = Path(request)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = in_use + 2 * path.stat().st_size + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    model = fasttext.load_model(str(path))
    model.predict(" ".join(model.words[:1]))  # ValueError if it only has words' vectors
    with subprocess.Popen(["wc", "-c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as counter:
        assert counter.stdin
        model.save_model(f"/dev/fd/{counter.stdin.fileno()}")
        written = int(counter.communicate()[0])
    if written != path.stat().st_size:
        raise ValueError(f"the file has {path.stat().st_size:,} bytes, its model {written:,}")
    return sorted(label.removeprefix(LABEL) for label in model.labels)


if __name__ == "__main__":
    reply(_labels)
