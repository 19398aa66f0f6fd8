"""Private hooks into TRL, and the Transformers Trainer and Accelerate below it: everything that their public API cannot
do.

    templates.py    read TRL's chat templates without importing torch
    trainer.py      score labelled positions only; reproducible epochs after a resume
    checkpoint.py   checkpoints that any layout can resume
    fsdp.py         FSDP2 on CPUs too; gradients reduced in fp32
    step_means.py   train on token ids; losses and metrics that are means over the step
    sft.py          … on labelled ones
    dpo.py          … on pairs of them
    kto.py          … on labelled completions; a KL term that is the mean over the step
    grpo.py         sample from token ids, each completion with its own seed; vLLM on CPU; merged weights; a metric
                    of the rollouts' mismatch, and its gate
    shared_prompts.py    compute a prompt once for all of its completions

VERSIONS are those the hooks are written for. tests/posttrain/test_trl_hooks.py fails for others, and when a hook is no
longer needed.
"""

VERSIONS = {"trl": "1.16", "transformers": "5.17", "accelerate": "1.15"}
