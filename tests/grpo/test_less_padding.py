"""The trainer's shorter way to the log-probabilities gives what TRL's gives."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from tasks.grpo.grpo import ROWS, Trainer


def test_rows_of_like_lengths_cut_to_size_have_the_same_log_probabilities() -> None:
    rows, longest_prompt, longest_completion = 2 * ROWS + 5, 20, 9
    torch.manual_seed(0)
    prompts, completions = (torch.randint(1, longest + 1, (rows,)) for longest in (longest_prompt, longest_completion))
    place = torch.arange(longest_prompt + longest_completion)
    mask = (place >= longest_prompt - prompts[:, None]) & (place < longest_prompt + completions[:, None])
    tokens = torch.randint(2, 64, mask.shape).masked_fill(~mask, 1)
    trainer = Trainer.__new__(Trainer)  # without its dataset and engine: of these only this is used
    AcceleratorState._reset_state()  # of a training in this process, which may be in bf16
    trainer.accelerator = Accelerator(cpu=True)
    model = _tiny()

    ours = trainer._get_per_token_logps_and_entropies(
        model, tokens, mask.long(), longest_completion, compute_entropy=True
    )
    theirs = GRPOTrainer._get_per_token_logps_and_entropies(
        trainer, model, tokens, mask.long(), longest_completion, compute_entropy=True
    )

    for mine, its in zip(ours[:2], theirs[:2], strict=True):
        assert mine is not None
        torch.testing.assert_close(mine, its, atol=1e-5, rtol=1e-5)


def _tiny() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    model = Qwen3ForCausalLM(config)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model
