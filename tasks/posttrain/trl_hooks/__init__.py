"""Private hooks into TRL, and into the Transformers Trainer and Accelerate below it, for all that their public API
lacks.

    templates.py    read TRL's chat templates without importing torch
    trainer.py      score labelled positions only; reproducible epochs after a resume
    checkpoint.py   checkpoints that any layout can resume
    fsdp.py         FSDP2 on CPUs too; gradients reduced in fp32
    step_means.py   train on token ids; losses and metrics that are means over the step
    sft.py          SFT on labelled token ids
    dpo.py          DPO on pairs of token ids
    kto.py          KTO on token ids, with a KL term that is the mean over the step
    grpo.py         sample from token ids, each completion with its own seed; vLLM on CPU; merged weights; the metric
                    of the rollouts' mismatch, and its limit
    shared_prompts.py    compute a prompt once for all of its completions

VERSIONS are the versions for which the hooks are written. tests/posttrain/test_trl_hooks.py fails for others, and when
a hook is no longer needed.
"""

VERSIONS = {"trl": "1.16", "transformers": "5.17", "accelerate": "1.15"}
