"""Hooks into TRL's GRPOTrainer and its generation with vLLM."""

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import trl.trainer.grpo_trainer
from blake3 import blake3
from peft import PeftModel
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from baton.tasks.core.job import StageError
from baton.tasks.models.model_files import as_saved, saved_buffers
from baton.tasks.posttrain import process
from baton.tasks.posttrain.adapter import base_of, merged_weights
from baton.tasks.posttrain.drift import beginning, check_drift, sum_and_count
from baton.tasks.posttrain.methods.grpo.rollout_servers import RolloutServers
from baton.tasks.posttrain.weight_check import check_weights
from baton.tasks.vllm.engine import check_engine, open_engine, sample, scores
from baton.tasks.vllm.engine_weights import named_weights
from baton.tasks.vllm.hooks import before_each_step, leave_transformers_alone, reload_weights
from baton.tasks.vllm.tensor_digests import Held, digests

EFFECT = 1e-3  # minimum change of a log-probability when a weight is replaced


class TokenTrainer(GRPOTrainer):
    """GRPOTrainer on prompts of token ids: the dataset's column `prompt` has indices into `prompt_ids`, as text.

    It also logs `rollout_mismatch`, the difference between the probabilities of vLLM and of the trainer over all
    processes, and raises StageError if it is above `most_drift`. Entropy and KL are means over a step's tokens; TRL
    uses the mean of the micro batches' means.
    """

    def __init__(self, prompt_ids: Sequence[list[int]], most_drift: float | None = None, **arguments: Any) -> None:
        self.prompt_ids, self.most_drift = prompt_ids, most_drift
        self.tokens: list[torch.Tensor] = []  # this process's number of tokens in each micro batch of a step
        super().__init__(**arguments)

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.prompt_ids[int(index)] for index in prompts], None, {}

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self.vllm_generation.begin(self.state.global_step)
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mask = (output["completion_mask"] * output.get("tool_mask", 1)).bool()
        trainer, engine = output["old_per_token_logps"], output["sampling_per_token_logps"]
        total, count = self.accelerator.reduce(sum_and_count(trainer, engine, mask), "sum").tolist()
        self._metrics["train"]["rollout_mismatch"].append(total / count)
        if self.most_drift is not None:
            describe = beginning(self.processing_class.decode, output["completion_ids"], mask)
            check_drift(self.most_drift, total / count, trainer, engine, mask, describe)
        return output

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        if model.training:
            self.tokens.append((inputs["completion_mask"] * inputs.get("tool_mask", 1)).sum())
        return super()._compute_loss(model, inputs)

    def log(self, logs: dict[str, float], *args: Any) -> None:
        if self.tokens:
            counts = self.accelerator.reduce(torch.stack(self.tokens).double(), "sum").tolist()
            for name in {"entropy", "kl"} & self._metrics["train"].keys():
                means = zip(self._metrics["train"][name], counts, strict=True)
                self._metrics["train"][name] = [sum(mean * count for mean, count in means) / max(1.0, sum(counts))]
            self.tokens = []
        super().log(logs, *args)


Sampled = Sequence[tuple[Sequence[int], Sequence[float]]]
"""The tokens and log-probabilities of each completion."""


class LiveGeneration(VLLMGeneration):
    """Generation with vLLM on the trainer's weights. Each completion is drawn with its own seed, which depends on the
    run's seed, the step and the completion's place in the batch of all processes, and so not on the layout; TRL seeds
    each process's engine.

    TRL merges an adapter in place to read the weights, and undoes it afterwards, which changes bf16 weights in each
    step.
    """

    def __init__(
        self, *, seed: int, alive: Callable[[int], None], check_every: int | None = None, **settings: Any
    ) -> None:
        """Set up generation. `check_every`: steps between checks that the engine has the trainer's weights."""
        self.seed, self.alive, self.check_every, self.step = seed, alive, check_every, 0
        self.changed: str | None = None  # the kind of tensors for which `_iter_named_params` yields other values
        super().__init__(**settings)

    def begin(self, step: int) -> None:
        """Prepare to sample for the step after `step` completed ones."""
        self.step = step
        self.alive(step)

    def generate(
        self,
        prompts: Any,
        images: None,
        num_generations: int,
        profiler: Any = None,
        places: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        """Sample a completion of each prompt. `places`: those in the batch of all processes, by default those of the
        prompts."""
        first = self.accelerator.process_index * len(prompts)
        if places is None:
            places = range(first, first + len(prompts))
        sampled = self.sample(prompts, [completion_seed(self.seed, self.step, place) for place in places])
        return (
            prompts,
            [list(ids) for ids, _ in sampled],
            [[[each] for each in logprobs] for _, logprobs in sampled],
            None,
        )

    def sample(self, prompts: Sequence[list[int]], seeds: Sequence[int]) -> Sampled:
        """Sample a completion of each prompt of this process."""
        completions = sample(self.llm, prompts, seeds=seeds, max_tokens=self.max_completion_length, **self.options())
        return [(each.token_ids, each.logprobs) for each in completions]

    def options(self) -> dict[str, Any]:
        """Return the options of baton.tasks.vllm.engine.sample that no call changes."""
        return {"temperature": self.temperature, **self.generation_kwargs}

    def until_all_have_sampled(self) -> None:
        """Wait until no process samples for this step anymore. Only engines that several processes share need to
        wait."""

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engine, and every `check_every` steps verify that the engine has them."""
        self._load()
        if self.step == 0:
            self._check_probe()
        if self.check_every and self.step % self.check_every == 0:
            held, weights = self._held(), self._iter_named_params()
            if held is None:
                deque(weights, maxlen=0)  # reading the weights is collective
                return
            compared = check_weights(weights, held, self.step)
            if self.accelerator.is_main_process:
                print(f"step {self.step}: {compared}", flush=True)
            if self.step == 0 and compared.skipped:
                self._check_effects(compared.skipped)

    def _load(self) -> None:
        super().sync_weights()

    def _check_probe(self) -> None:
        """Raise StageError if the engine, with the untrained model's weights, computes other log-probabilities than the
        model."""
        check_engine(self.llm, Path(self.model.name_or_path))

    def _check_effects(self, names: Sequence[str]) -> None:
        """Raise StageError unless other values of these tensors, changed one kind at a time, change the engine's
        results: it may load a tensor once and ignore it in each sync (vLLM 0.27, experts of gpt-oss on a CPU)."""
        kinds = {kind_of(name) for name in names} - {kind_of(name) for name, _ in saved_buffers(base_of(self.model))}
        before = self._scores()
        for self.changed in sorted(kinds):
            self._load()
            if max(abs(one - other) for one, other in zip(before, self._scores(), strict=True)) < EFFECT:
                raise StageError(
                    f"vLLM does not follow the trainer for this architecture: other values of {self.changed} do not "
                    "change its results, and completions would come from weights that are not trained"
                )
        self.changed = None
        self._load()

    def _scores(self) -> list[float]:
        """Return the log-probabilities of some tokens; NaN counts as infinity."""
        (logprobs,) = scores(self.llm, [range(1, 1 + min(32, self.max_model_length - 1))])
        return [logprob if math.isfinite(logprob) else math.inf for logprob, _ in logprobs]

    def _held(self) -> Mapping[str, Held] | None:
        """Return digests of the engine's weights, or None if another process compares them, or no process can."""
        return digests(named_weights(self.live_model()))

    def live_model(self) -> Any:
        """Return the model in vLLM, if it runs in this process."""
        return self.llm.llm_engine.model_executor.driver_worker.model_runner.model

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights as in a checkpoint, which vLLM reads: in memory, Transformers has some under other names
        (GPT-NeoX) or stacked (experts). Yields buffers too, since `reload_weights` leaves those that it does not get
        without values."""
        adapted = isinstance(self.model, PeftModel)
        weights = merged_weights(self.model) if adapted else super()._iter_named_params()
        for name, weight in chain(weights, saved_buffers(base_of(self.model))):
            for part, tensor in as_saved(base_of(self.model), name, weight):
                yield part, 1 - tensor.detach() if self.changed == kind_of(part) else tensor


class ColocatedGeneration(LiveGeneration):
    """Generation with an engine in each process, which TRL opens."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        before_each_step(self.llm, lambda: self.alive(self.step))

    def _init_vllm(self) -> None:
        leave_transformers_alone()
        super()._init_vllm()


class CPUGeneration(ColocatedGeneration):
    """Colocated generation with vLLM on CPU, where TRL's own generation fails: it writes into vLLM's parameters, which
    the CPU build has repacked. Here vLLM reloads them in place, keeping the engine, its KV cache and its scheduler."""

    def _init_vllm(self) -> None:
        leave_transformers_alone()
        self.llm = open_engine(
            Path(self.model.name_or_path),
            max_model_len=self.max_model_length,
            max_num_seqs=self.max_num_seqs,
            seed=self.seed,
            whole_prompts=True,
        )

    def _load(self) -> None:
        reload_weights(self.llm, weights_iterator=self._iter_named_params())


class ServedGeneration(LiveGeneration):
    """Generation with engines in other processes, which rank 0 calls; `servers` is None on the other ranks. TRL's own
    client of servers needs CUDA."""

    def __init__(self, *, servers: RolloutServers | None, workers: int, **settings: Any) -> None:
        self.servers, self.workers = servers, workers
        super().__init__(**settings)

    def _init_vllm(self) -> None:
        if self.servers:
            with process.alone():
                self.servers.open(
                    self.workers,
                    model=self.model.name_or_path,
                    max_model_len=self.max_model_length,
                    max_num_seqs=-(-self.max_num_seqs * self.accelerator.num_processes // self.servers.count),
                    gpu_memory_share=self.gpu_memory_utilization,
                    seed=self.seed,
                )
            self.servers.alive = lambda: self.alive(self.step)
        process.barrier()

    def _load(self) -> None:
        """Send the weights; every rank takes part in gathering them."""
        if self.servers:
            self.servers.load(self._iter_named_params())
        else:
            deque(self._iter_named_params(), maxlen=0)

    def _check_probe(self) -> None:
        """Do nothing, since each engine has checked the model that it opened."""

    def _check_effects(self, names: Sequence[str]) -> None:
        """Do nothing, since the engines only sample."""

    def _held(self) -> Mapping[str, Held] | None:
        """Return None with tensor parallelism, where no process of a server has a complete layer."""
        return self.servers.held() if self.servers and self.workers == 1 else None

    def sample(self, prompts: Sequence[list[int]], seeds: Sequence[int]) -> Sampled:
        """Sample for all ranks. Collective, as `until_all_have_sampled` is, since conversations of one rank may have
        more turns than those of another."""
        process.any_rank(True)
        return self._round([(*each, self.max_completion_length) for each in zip(prompts, seeds, strict=True)])

    def until_all_have_sampled(self) -> None:
        while process.any_rank(False):
            self._round([])

    def _round(self, asked: list[tuple[list[int], int, int]]) -> Sampled:
        """Sample for the (prompt, seed, maximum of new tokens) of all ranks. The largest maximum applies to all; a
        conversation cuts the tokens that exceed its own."""

        def of_all_ranks(asked: list[tuple[list[int], int, int]]) -> list[tuple[list[int], list[float]]]:
            assert self.servers is not None
            prompts, seeds, most = zip(*asked, strict=True)
            return self.servers.sample(prompts, seeds, max_tokens=max(most), **self.options())

        return process.on_first(of_all_ranks, asked)


def generate_live(generation: type[LiveGeneration], **settings: Any) -> None:
    """Let GRPOTrainer use this generation. `settings` are the arguments that TRL does not pass: `seed`, and `alive`,
    which is called before each of vLLM's steps with the number of completed training steps."""
    trl.trainer.grpo_trainer.VLLMGeneration = partial(generation, **settings)


def colocated() -> type[LiveGeneration]:
    """Return the class for generation in the trainer's processes on this machine."""
    return ColocatedGeneration if torch.cuda.is_available() else CPUGeneration


def kind_of(name: str) -> str:
    """Return a tensor's name without the numbers of layer and expert: `model.layers.*.mlp.experts.*.up_proj.weight`."""
    return re.sub(r"\d+", "*", name)


def completion_seed(seed: int, step: int, place: int) -> int:
    """Return the seed of the completion at a place in the batch of the step after `step` completed ones."""
    return int.from_bytes(blake3(f"{seed} {step} {place}".encode()).digest(length=4), "little")
