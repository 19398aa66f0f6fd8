"""Run vLLM's OpenAI server: `python -m baton.tasks.serve.vllm_server ARGUMENTS…`, with the arguments of `vllm serve`.

Unlike `vllm serve`, it ends with the process that started it, and leaves no process behind.
"""

import os
import sys

from baton.infra.paths import quiet
from baton.infra.process.imports import large_imports
from baton.infra.process.limits import cores
from baton.infra.process.parent_watchdog import end_with_launcher
from baton.tasks.vllm.hooks import prepare_process, run_api_server, score_prompts_of_adapter, serve_adapter_only

GRACE_S = 10.0  # vLLM ends within 2 s of SIGTERM


def main() -> None:
    quiet()
    end_with_launcher(GRACE_S)
    if not prepare_process():
        sys.argv.append("--enforce-eager")  # on CPU, compilation pays off only after minutes
        # Reserve a core for the API server, as vLLM does for a separate worker process: on two busy cores a token took
        # 21 ms instead of 7 when the engine used both.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() - 1)))
    if "--enable-lora" in sys.argv:
        serve_adapter_only()
    run_api_server()


if __name__ == "__mp_main__":  # the engine's process, which the server spawns
    with large_imports():
        import vllm.v1.engine.core  # noqa: F401
    if "--enable-lora" in sys.argv:
        score_prompts_of_adapter()

if __name__ == "__main__":
    sys.argv[0] = "vllm serve"
    main()
