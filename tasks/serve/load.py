"""The load benchmark: vLLM's own (`vllm bench serve`), all levels in one process.

Importing this module imports vLLM (8 s on two cores): do so while the server loads.
"""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

from vllm.benchmarks.serve import add_cli_args, main_async
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tasks.serve.server import Served
from tasks.serve.smoke import api_key
from tasks.serve.spec import LoadSpec

PERCENTILES = (50, 95, 99)
# Ours: vLLM's name. Between tokens: the mean of each request (tpot). Single gaps (itl) would say less: under load
# several tokens arrive in one piece, and most gaps are then zero.
LATENCIES = {"first_token_ms": "ttft", "inter_token_ms": "tpot", "whole_ms": "e2el"}


def measure(url: str, model: Served, load: LoadSpec) -> Iterator[dict[str, Any]]:
    """What each level came to: {"concurrency", "requests", "failed", "errors", "seconds", "requests_per_s",
    "tokens_per_s" (of answers), and of each latency in ms {"p50", "p95", "p99"}}."""
    os.environ["OPENAI_API_KEY"] = api_key()  # vLLM's benchmark sends what is there: not a real key of OpenAI's
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    for clients in load.concurrency:
        found = asyncio.run(main_async(parser.parse_args(_words(url, model, load, clients))))
        errors = [error.strip().splitlines()[-1][:300] for error in found["errors"] if error.strip()]
        yield {
            "concurrency": clients,
            "requests": requests(load, clients),
            "failed": int(found["failed"]),
            "errors": sorted(set(errors))[:5],
            "seconds": float(found["duration"]),
            "requests_per_s": float(found["request_throughput"]),
            "tokens_per_s": float(found["output_throughput"]),
            **{
                ours: {f"p{share}": float(found[f"p{share}_{theirs}_ms"]) for share in PERCENTILES}
                for ours, theirs in LATENCIES.items()
            },
        }


def requests(load: LoadSpec, clients: int) -> int:
    return max(load.least_requests, clients * load.requests_per_client)


def _words(url: str, model: Served, load: LoadSpec, clients: int) -> list[str]:
    words = {
        "base-url": url,
        "model": model.directory,  # its tokenizer
        "served-model-name": model.digest,
        "dataset-name": "random",
        "random-input-len": load.prompt_tokens,
        "random-output-len": load.output_tokens,
        "num-prompts": requests(load, clients),
        "max-concurrency": clients,
        "num-warmups": min(clients, 8),  # a level's first requests would pay for what is made once
        "seed": load.seed * 10_000 + clients,  # other prompts each time: the server remembers prefixes
        "temperature": 1,
        "percentile-metrics": ",".join(LATENCIES.values()),
        "metric-percentiles": ",".join(map(str, PERCENTILES)),
        "ready-check-timeout-sec": 0,
    }
    flags = ["--disable-tqdm", "--save-detailed"]  # detailed: with what went wrong
    return [word for name, value in words.items() for word in (f"--{name}", str(value))] + flags
