from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from baton.infra.storage.disk_errors import full_disk

WEIGHTS = torch.zeros(100_000)


def buffered(path: Path) -> None:
    with path.open("wb") as stream:
        torch.save(WEIGHTS, stream)


def unbuffered(path: Path) -> None:
    with path.open("wb", buffering=0) as stream:
        torch.save(WEIGHTS, stream)


def by_name(path: Path) -> None:
    torch.save(WEIGHTS, path)


@pytest.mark.parametrize(
    ("save", "says"),
    [(buffered, "No space left on device"), (unbuffered, "No space left on device"), (by_name, "unexpected pos")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_full_disk_is_found_behind_what_torch_raises(save: Callable[[Path], None], says: str) -> None:
    with pytest.raises((OSError, RuntimeError)) as error:
        save(Path("/dev/full"))
    assert says in (full_disk(error.value) or "")


@pytest.mark.parametrize(
    "message",
    [
        "Error while serializing: I/O error: File too large (os error 27)",
        'IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
    ],
)
def test_what_safetensors_says_is_known(message: str) -> None:
    assert full_disk(SafetensorError(message)) == message


def test_an_error_of_another_cause_is_not_a_full_disk() -> None:
    with pytest.raises(RuntimeError) as error:
        WEIGHTS @ torch.zeros(3)
    assert full_disk(error.value) is None
