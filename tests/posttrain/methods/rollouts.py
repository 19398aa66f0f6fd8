"""Change a trainer's weights beside a live engine: `python -m tests.posttrain.methods.rollouts FOLDER`. It runs in a
separate process, since vLLM keeps a process group that other tests may destroy. Prints as JSON the mismatch of both
models at first, after the change, and after a sync; the results of the weight checks; the samples of one process, of
two, and of two rollout servers; and the mismatch of engine and servers for the same samples."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.tasks.core.job import StageError
from baton.tasks.posttrain.methods.grpo.rollout_servers import LOCAL, RolloutServers
from baton.tasks.posttrain.trl_hooks.grpo import CPUGeneration, LiveGeneration, ServedGeneration
from baton.tasks.posttrain.weight_check import check_weights
from baton.tasks.vllm.engine_weights import named_weights
from baton.tasks.vllm.tensor_digests import digests
from tests.posttrain.tiny import tiny_model


def main() -> None:
    folder = Path(sys.argv[1])
    first, second = tiny_model(folder / "first", seed=1), tiny_model(folder / "second", seed=2)
    model = AutoModelForCausalLM.from_pretrained(first, dtype=torch.float32)
    settings: dict[str, Any] = {
        "seed": 0,
        "alive": lambda step: None,
        "model": model,
        "accelerator": Accelerator(cpu=True),
        "processing_class": AutoTokenizer.from_pretrained(first),
        "max_model_length": 64,
        "max_num_seqs": 8,
        "max_completion_length": 16,
    }
    rollouts = CPUGeneration(check_every=2, **settings)
    found = [mismatch(model, rollouts)]
    sharper = AutoModelForCausalLM.from_pretrained(second, dtype=torch.float32)
    # twice the weights give distributions that differ, but whose bf16 rounding error stays below 1 % on every processor
    model.load_state_dict({name: 2 * weight for name, weight in sharper.state_dict().items()})
    found.append(mismatch(model, rollouts))
    stale = refused(model, rollouts)
    rollouts.sync_weights()  # checks the weights
    found.append(mismatch(model, rollouts))
    here: dict[str, Any] = {"one": sampled(rollouts, 1), "two": sampled(rollouts, 2)}
    before = listening()
    with RolloutServers(folder / "job", 2, timeout_s=60) as servers:
        servers.start(["0", "1"], [])
        served = ServedGeneration(servers=servers, workers=1, check_every=1, **settings)
        served.sync_weights()
        here["open_to_others"] = sorted(listening() - before)
        here["served"] = sampled(served, 1)
        rollouts.accelerator = served.accelerator
        here["at_step_3"] = [mismatch(model, rollouts), mismatch(model, served)]
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[3, 4] *= 1.01
    print(json.dumps({"mismatch": found, "stale": stale, "one_off": refused(model, rollouts)} | here))


def listening() -> set[tuple[str, int]]:
    """Return the addresses on which this process accepts connections from other machines."""
    found = psutil.Process().net_connections()
    return {(*each.laddr,) for each in found if each.status == psutil.CONN_LISTEN and each.laddr.ip != LOCAL}


def refused(model: torch.nn.Module, rollouts: CPUGeneration) -> str:
    try:
        check_weights(model.named_parameters(), digests(named_weights(rollouts.live_model())), step=7)
    except StageError as error:
        return str(error)
    return ""


def sampled(rollouts: LiveGeneration, processes: int) -> list[list[int]]:
    """Return the completions of a step with 4 prompts, computed by one process after the other."""
    prompts = [[5, 6, 7, 8], [5, 6, 7, 8], [9, 10, 11], [12] * 40]
    share, found = len(prompts) // processes, []
    for rank in range(processes):
        rollouts.accelerator = SimpleNamespace(process_index=rank)
        rollouts.begin(3)
        found += rollouts.generate(prompts[rank * share : (rank + 1) * share], None, num_generations=1)[1]
    return found


def mismatch(model: torch.nn.Module, rollouts: LiveGeneration) -> float:
    """Return the mean of exp|log-probability(model) − log-probability(vLLM)| over sampled tokens."""
    prompts = [[5, 6, 7, 8], [9, 10, 11, 12, 13]]
    _, completions, logprobs, _ = rollouts.generate(prompts, None, num_generations=1)
    apart = []
    for prompt, completion, theirs in zip(prompts, completions, logprobs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        ours = logits.log_softmax(-1)[range(len(completion)), list(completion)]
        apart.append((ours - torch.tensor(theirs)[:, 0]).abs())
    return float(torch.cat(apart).exp().mean())


if __name__ == "__main__":
    main()
