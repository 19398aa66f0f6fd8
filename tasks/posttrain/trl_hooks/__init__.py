"""Private hooks into TRL and the Transformers Trainer below it: everything that their public API cannot do.

    templates.py    read TRL's chat templates without importing torch
    trainer.py      score labelled positions only; reproducible epochs after a resume; load a finished checkpoint
    dpo.py          train on pairs of token ids
    grpo.py         sample from token ids; vLLM on CPU; a metric of the rollouts' mismatch
    shared_prompts.py    compute a prompt once for all of its completions

VERSIONS are those the hooks are written for. tests/posttrain/test_trl_hooks.py fails for others, and when a hook is no
longer needed.
"""

VERSIONS = {"trl": "1.16", "transformers": "5.17"}
