"""Piecewise cross-entropy, compared with torch's over all logits."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from baton.tasks.pretrain import loss
from baton.tasks.pretrain.loss import linear_cross_entropy
from baton.tasks.pretrain.megatron_hooks import FusedLossGPTModel
from baton.tasks.pretrain.model import build_model, transformer_config
from tests.pretrain.alone import alone
from tests.pretrain.footprint import peak
from tests.pretrain.tiny import MODEL

# isort: split
from megatron.core.models.gpt.gpt_model import GPTModel

Problem = tuple[Tensor, Tensor, Tensor, Tensor]


def problem(tokens: int, width: int, vocabulary: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Problem:
    """Return (hidden, weight, labels, mask), with masked tokens if there are several."""
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=random).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=random).to(dtype).requires_grad_()
    labels = torch.randint(0, vocabulary, (tokens,), generator=random)
    mask = (torch.rand(tokens, generator=random) < 0.8).float()
    mask[0] = 1
    return hidden, weight, labels, mask


def full_loss(hidden: Tensor, weight: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    return F.cross_entropy((hidden @ weight.t()).float(), labels, reduction="none")


def mean_and_gradients(losses: Tensor, hidden: Tensor, weight: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean = (losses * mask).sum() / mask.sum()
    for_hidden, for_weight = torch.autograd.grad(mean, (hidden, weight))
    return mean, for_hidden, for_weight


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces so small that a tiny problem has several, of which the last one is short."""
    monkeypatch.setattr(loss, "PIECE_BYTES", 7 * 50 * 4)
    monkeypatch.setattr(loss, "TILE_BYTES", 3 * 50 * 4)


@settings(deadline=None, max_examples=60)
@given(tokens=st.integers(1, 40), width=st.integers(1, 12), vocabulary=st.integers(1, 90), seed=st.integers(0, 99))
def test_it_is_torchs_cross_entropy_to_fp32_rounding(tokens: int, width: int, vocabulary: int, seed: int) -> None:
    hidden, weight, labels, mask = problem(tokens, width, vocabulary, seed)
    expected, losses = full_loss(hidden, weight, labels, mask), linear_cross_entropy(hidden, weight, labels, mask)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    for mine, torchs in zip(
        mean_and_gradients(losses, hidden, weight, mask),
        mean_and_gradients(expected, hidden, weight, mask),
        strict=True,
    ):
        torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-6)


def test_in_bf16_it_errs_no_more_than_whole_logits_do() -> None:
    hidden, weight, labels, mask = problem(64, 32, 200, dtype=torch.bfloat16)
    exact_hidden, exact_weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    exact = F.cross_entropy(exact_hidden @ exact_weight.t(), labels, reduction="none")
    truth = mean_and_gradients(exact, exact_hidden, exact_weight, mask)
    errors = [
        [float((got.double() - true).norm() / true.norm()) for got, true in zip(result, truth, strict=True)]
        for result in (
            mean_and_gradients(linear_cross_entropy(hidden, weight, labels, mask), hidden, weight, mask),
            mean_and_gradients(full_loss(hidden, weight, labels, mask), hidden, weight, mask),
        )
    ]
    mine, torchs = errors
    assert all(a <= 1.2 * b + 1e-4 for a, b in zip(mine, torchs, strict=True)), errors


def test_the_gradient_of_any_micro_batch_is_its_share() -> None:
    """Megatron's schedule divides the sum by the number of tokens, and by the number of micro batches."""
    hidden, weight, labels, mask = problem(20, 8, 30)
    for factor in (1.0, 1 / 3, 1024.0):
        gradients = [
            torch.autograd.grad((losses * mask).sum() * factor, (hidden, weight))
            for losses in (linear_cross_entropy(hidden, weight, labels, mask), full_loss(hidden, weight, labels, mask))
        ]
        for mine, torchs in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-6 * factor)


def test_a_micro_batch_that_does_not_count_has_no_gradient() -> None:
    hidden, weight, labels, mask = problem(20, 8, 30)
    losses = linear_cross_entropy(hidden, weight, labels, torch.zeros_like(mask))
    for gradient in torch.autograd.grad((losses * 0).sum(), (hidden, weight)):
        assert not gradient.any()


def test_a_gradient_that_does_not_follow_the_mask_is_refused() -> None:
    hidden, weight, labels, mask = problem(20, 8, 30)
    with pytest.raises(RuntimeError, match="not a multiple of their mask"):
        linear_cross_entropy(hidden, weight, labels, mask).square().sum().backward()


def test_what_is_not_a_number_stays_so() -> None:
    hidden, weight, labels, mask = problem(20, 8, 30)
    with torch.no_grad():
        hidden[3, 2] = float("nan")
    losses = linear_cross_entropy(hidden, weight, labels, mask)
    (losses * mask).mean().backward()
    assert losses[3].isnan() and hidden.grad is not None and hidden.grad[3].isnan().all()


def test_without_gradients_none_are_computed() -> None:
    hidden, weight, labels, mask = problem(20, 8, 30)
    with torch.no_grad():
        losses = linear_cross_entropy(hidden, weight, labels, mask)
    assert not losses.requires_grad
    torch.testing.assert_close(losses, full_loss(hidden, weight, labels, mask))


def test_the_logits_are_never_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "PIECE_BYTES", 2**18)
    hidden, weight, labels, mask = problem(4096, 16, 1024)  # 16 MiB of logits
    with peak() as largest:
        linear_cross_entropy(hidden, weight, labels, mask)
    assert largest() < 2**20


# -- in the model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_loses_and_learns_as_megatrons_own(tied: bool) -> None:
    """The weight's gradient is where Megatron's data parallelism expects it, whether embeddings are tied or not."""
    spec = MODEL.model_copy(update={"tied_embeddings": tied})
    tokens = torch.randint(0, 260, (2, 33), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(32).expand(2, 32)
    mask = torch.ones(2, 32)
    mask[1, 20:] = 0
    found = []
    with alone():
        model = build_model(spec, transformer_config(spec, "fp32"), 260)
        assert isinstance(model, FusedLossGPTModel)
        for kind in (FusedLossGPTModel, GPTModel):
            model.__class__ = kind
            losses = model(tokens[:, :-1], positions, None, labels=tokens[:, 1:], loss_mask=mask)
            model.zero_grad()
            ((losses * mask).sum() / mask.sum()).backward()
            found.append([losses, *(parameter.grad for parameter in model.parameters())])
            logits = model(tokens[:, :-1], positions, None)
            assert logits.shape == (2, 32, 260)
    for mine, megatrons in zip(*found, strict=True):
        torch.testing.assert_close(mine, megatrons, rtol=1e-4, atol=1e-6)


# -- a part of the vocabulary on each rank ------------------------------------------------------------


def _rank(rank: int, folder: str) -> None:
    """One of two ranks with half of the vocabulary each, compared with one process."""
    torch.set_num_threads(1)
    loss.PIECE_BYTES, loss.TILE_BYTES = 7 * 45 * 4, 3 * 45 * 4
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    hidden, weight, labels, mask = problem(40, 8, 90)
    half = weight.detach().chunk(2)[rank].clone().requires_grad_()
    losses = linear_cross_entropy(hidden, half, labels, mask, dist.group.WORLD)
    mine = mean_and_gradients(losses, hidden, half, mask)
    dist.all_reduce(mine[1])  # as copy_to_tensor_model_parallel_region does
    expected = mean_and_gradients(full_loss(hidden, weight, labels, mask), hidden, weight, mask)
    torch.testing.assert_close(mine[0], expected[0])
    torch.testing.assert_close(mine[1], expected[1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(mine[2], expected[2].chunk(2)[rank], rtol=1e-4, atol=1e-6)
    dist.destroy_process_group()


@pytest.mark.long
def test_two_ranks_with_half_of_the_vocabulary_each(tmp_path: Path) -> None:
    start_processes(_rank, (str(tmp_path),), nprocs=2, start_method="spawn")
