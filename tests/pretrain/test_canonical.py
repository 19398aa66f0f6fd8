"""A checkpoint's digest does not depend on the Python version that wrote it."""

import enum
import io
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import TensorProperties
from torch.distributed.checkpoint.planner import WriteItemType

from baton.tasks.pretrain.canonical import MetadataPickler


def pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    MetadataPickler(stream).dump(value)
    return stream.getvalue()


@pytest.mark.parametrize("value", [TensorProperties(dtype=torch.bfloat16), WriteItemType.SHARD], ids=["layout", "type"])
def test_an_enumeration_is_pickled_as_all_but_a_few_pythons_do_it(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = pickled(value)
    assert b"getattr" not in usual
    # the behavior of Debian 12's Python, 3.11.2
    monkeypatch.setattr(enum.Enum, "__reduce_ex__", lambda self, protocol: (getattr, (type(self), self.name)))
    assert pickled(value) == usual
