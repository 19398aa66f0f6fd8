"""Estimate the work of a post-training stage."""

from collections.abc import Iterator

from baton.tasks.hardware.need import BF16, Conditions, Need, Work
from baton.tasks.posttrain.memory import estimate
from baton.tasks.posttrain.spec import PostTrainSpec

# NF4 weights are unpacked for each product: QLoRA took 39 % longer than LoRA (S. Raschka, Lightning AI 2023,
# "Finetuning LLMs with LoRA and QLoRA")
UNPACKING = 0.39
# Weights from the trainer to vLLM after each step: PCIe 4.0 x16 carries 25 GB/s, and a network of 100 Gbit/s,
# the slowest of clouds' machines with 8 GPUs, 12.5 GB/s
SYNC_HERE, SYNC_NETWORK = 25e9, 12.5e9  # bytes/s


def need(spec: PostTrainSpec, on: Conditions) -> Need | None:
    """Return the work of a TRL stage, or None if the layout cannot run. Tokens and FLOPs are those of sequences of the
    maximum length, and so is the work on a GPU; the work on a CPU is that of sequences of the usual length. A backward
    pass counts as two forward passes, and with an adapter as one, since frozen weights have no gradient. Completions
    that are sampled once before the first step are not counted."""
    if spec.layout.problems_with(spec.batch_size):
        return None
    memory = estimate(spec, on.model, on.vocabulary, on.positions, on.kernels, on.capacity)
    limits, layout, cost = spec.limits(on.positions), spec.layout, spec.step_cost()
    tokens = spec.steps * spec.batch_size * limits.total * cost.sequences
    passes = 2 if spec.adapter else 3
    longest = on.forward(tokens, limits.total)
    one = longest * on.filled
    training = one * passes
    samples = spec.samples_every_step()

    def work() -> Iterator[Work]:
        yield Work("training", training)
        yield Work("log-probabilities before the step", cost.forward_passes * one)
        recompute = "full" if layout.recomputes(on.gpu) else "none"
        yield Work("recomputation", on.filled * on.recomputation(tokens, limits.total, recompute))
        if spec.adapter and spec.adapter.quantize:
            yield Work("unpacking 4 bits", UNPACKING * (training + cost.forward_passes * one))
        if samples:
            # A process or a rollout server decodes its share of a step's completions together
            servers = spec.servers()
            engines, parts = (servers.count, servers.tensor_parallel) if servers else (layout.world, 1)
            together = max(1, spec.batch_size // engines)
            read = on.filled * on.sampling(together, limits.new, limits.prompt + limits.new / 2, together, parts)
            yield Work("rollouts", read=spec.steps * read)
            per_s = SYNC_NETWORK if servers and servers.nodes else SYNC_HERE
            yield Work("weight sync", seconds=spec.steps * BF16 * on.parameters / per_s)
        yield on.start(vllm=spec.uses_vllm())

    return on.need(
        spec,
        work(),
        tokens=tokens,
        flops=(passes + cost.forward_passes) * longest,
        memory=memory,
        processes=layout.world,
        precision=spec.precision,
        sampled=spec.steps * spec.batch_size * limits.new if samples else 0,
        not_counted="" if samples or not spec.uses_vllm() else "sampling before the first step",
    )
