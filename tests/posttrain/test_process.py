"""The exchange of values between ranks without a process group."""

from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from baton.tasks.core.nodes import PIECE, _write_file
from baton.tasks.posttrain import process


def test_a_text_of_rank_0_reaches_ranks_that_share_no_folder_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True)  # the store that torchrun creates
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    text = "0123456789é" * (process.PIECE // 4)
    process.hand_out("pairs", text)
    assert process.handed_out("pairs").decode() == text


def test_a_file_that_cannot_be_written_is_received_all_the_same(tmp_path: Path) -> None:
    """Otherwise the sender would wait."""
    (tmp_path / "file").touch()
    received: list[int] = []
    (error,) = _write_file(tmp_path / "file" / "part", PIECE + 1, lambda piece: received.append(len(piece)))
    assert isinstance(error, OSError)
    assert received == [PIECE, 1]
