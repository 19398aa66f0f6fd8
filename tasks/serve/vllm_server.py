"""vLLM's OpenAI-compatible server as our own process: `python -m tasks.serve.vllm_server WORDS…`, with the
words of `vllm serve`.

Two things are different. It ends with the process that started it, and no process of vLLM's is left. And its
engine process imports this small module in place of vLLM's whole server: on two cores it is ready in 18 s, not 26.
"""

import os
import runpy
import sys

from infra.home import quiet
from infra.lifeline import end_with_launcher

GRACE_S = 10.0  # vLLM ends within 2 s of SIGTERM


def main() -> None:
    quiet()
    end_with_launcher(GRACE_S)
    # To ask whether there is a GPU begins to use CUDA, which a process that is forked from this one could not do again.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    import torch

    if not torch.cuda.is_available():
        # the worker in the engine's process: one process less that imports vLLM
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # vLLM's sampler counts ranks in a function that inductor would compile for 2 to 20 s, for nothing
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        sys.argv.append("--enforce-eager")  # compiling pays off after minutes, on CPU
        # One core is the API server's, as vLLM keeps it where the worker is a process of its own: with all of them
        # in the engine, a token took 21 ms in place of 7 on two cores beside other work.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))
    # alter_sys: vLLM's processes are to find this module, not vLLM's, as the main one
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    sys.argv[0] = "vllm serve"
    main()
