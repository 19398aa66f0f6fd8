"""Estimate the work of an evaluation."""

from collections.abc import Iterator

from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.hardware.memory import Memory
from baton.tasks.hardware.need import BYTES_PER_TOKEN, Conditions, Need, Work
from baton.tasks.posttrain.spec import LENGTH

AT_A_TIME = 256  # concurrent sequences, max_num_seqs of open_engine


def need(spec: EvaluateSpec, on: Conditions) -> Need:
    """Return the work on one device, with completions of the maximum length on a GPU, and of the usual length on a CPU.
    Prompts are not counted."""
    scored = on.corpora * spec.bits_per_byte.held_out_bytes / BYTES_PER_TOKEN if spec.bits_per_byte else 0.0
    sampling = [one for one in spec.evaluators().values() if one.data is not None]
    harness = [name for name, one in spec.evaluators().items() if one.lm_eval]

    def work() -> Iterator[Work]:
        yield Work("bits per byte", on.forward(scored, LENGTH))
        for one in sampling:
            completions = (one.prompts + one.train_prompts) * one.samples
            at_once = min(completions, AT_A_TIME)
            read = on.sampling(completions, one.max_new_tokens, LENGTH / 2, at_once)
            yield Work("completions", read=on.filled * read)
        yield on.start(vllm=True)

    return on.need(
        spec,
        work(),
        tokens=int(scored),
        flops=on.forward(scored, LENGTH),
        memory=Memory(0, 0, 0, 0),
        processes=1,
        precision="bf16",
        sampled=sum((one.prompts + one.train_prompts) * one.samples * one.max_new_tokens for one in sampling),
        not_counted=f"lm-eval's tasks ({', '.join(harness)})" if harness else "",
    )
