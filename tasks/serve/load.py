"""Run vLLM's load benchmark (`vllm bench serve`), all levels in one process.

Importing this module imports vLLM (8 s on two cores): import it while the server loads.
"""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

from vllm.benchmarks.serve import add_cli_args, main_async
from vllm.utils.argparse_utils import FlexibleArgumentParser

from baton.tasks.models.tokenizers import alone
from baton.tasks.serve.server import Served, Server
from baton.tasks.serve.spec import LoadSpec

PERCENTILES = (50, 95, 99)
# Our names: vLLM's. Inter-token latency is the mean per request (tpot). Single gaps (itl) are less informative: under
# load several tokens arrive at once, and most gaps are zero.
LATENCIES = {"first_token_ms": "ttft", "inter_token_ms": "tpot", "whole_ms": "e2el"}


def measure(server: Server, load: LoadSpec) -> Iterator[dict[str, Any]]:
    """Yield the result of each level: {"concurrency", "requests", "failed", "errors", "seconds", "requests_per_s",
    "tokens_per_s" (generated), and for each latency in ms {"p50", "p95", "p99"}}."""
    os.environ["OPENAI_API_KEY"] = server.key  # vLLM's benchmark sends it
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    for clients in load.concurrency:
        result = asyncio.run(main_async(parser.parse_args(_arguments(server.url, server.model, load, clients))))
        errors = [error.strip().splitlines()[-1][:300] for error in result["errors"] if error.strip()]
        yield {
            "concurrency": clients,
            "requests": requests(load, clients),
            "failed": int(result["failed"]),
            "errors": sorted(set(errors))[:5],
            "seconds": float(result["duration"]),
            "requests_per_s": float(result["request_throughput"]),
            "tokens_per_s": float(result["output_throughput"]),
            **{
                name: {f"p{share}": float(result[f"p{share}_{vllm_name}_ms"]) for share in PERCENTILES}
                for name, vllm_name in LATENCIES.items()
            },
        }


def requests(load: LoadSpec, clients: int) -> int:
    return max(load.least_requests, clients * load.requests_per_client)


def _arguments(url: str, model: Served, load: LoadSpec, clients: int) -> list[str]:
    options = {
        "base-url": url,
        "model": alone(model.directory),  # for the tokenizer
        "served-model-name": model.digest,
        "dataset-name": "random",
        "random-input-len": load.prompt_tokens,
        "random-output-len": load.output_tokens,
        "num-prompts": requests(load, clients),
        "max-concurrency": clients,
        "num-warmups": min(clients, 8),  # exclude one-time costs from a level's first requests
        "seed": load.seed * 10_000 + clients,  # different prompts per level: the server caches prefixes
        "temperature": 1,
        "percentile-metrics": ",".join(LATENCIES.values()),
        "metric-percentiles": ",".join(map(str, PERCENTILES)),
        "ready-check-timeout-sec": 0,
    }
    flags = ["--disable-tqdm", "--save-detailed"]  # detailed: includes errors
    return [argument for name, value in options.items() for argument in (f"--{name}", str(value))] + flags
