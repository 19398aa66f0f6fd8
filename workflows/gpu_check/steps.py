"""The check's steps, in order."""

from baton.workflows.gpu_check import data, hardware, layers, models, pretraining, tuning
from baton.workflows.gpu_check.step import VLLM, Step

STEPS = (
    Step("cuda", hardware.cuda, limit_s=60, on_cpu=False),
    Step("gemm", hardware.gemm, limit_s=60),
    Step("data", data.data, limit_s=180),
    Step("pretrain-0.5b", pretraining.small, limit_s=240, after=("data",)),
    Step("resume", pretraining.kill, limit_s=240, after=("pretrain-0.5b",)),
    Step("export", models.export, limit_s=90, after=("pretrain-0.5b",)),
    Step("audit", models.audit, limit_s=180, after=("export",)),
    Step("vllm", models.vllm, limit_s=240, after=("export",), on_cpu_with=VLLM),
    *tuning.STEPS,
    Step("pretrain-1b", pretraining.large, limit_s=240, after=("data",)),
    Step("layers", layers.layers, limit_s=240),
    Step("fp8", pretraining.fp8, limit_s=240, after=("pretrain-1b",), modules=("transformer_engine",), on_cpu=False),
    Step("serve", models.serve, limit_s=240, after=("export",), on_cpu_with=VLLM),
    Step("two-gpus", pretraining.two, limit_s=240, after=("data",), gpus=2),
)
NAMES = [step.name for step in STEPS]
