"""Start a server, request a completion and a chat, measure it under load, and stop it.

Output: endpoint.json with the server's arguments, its responses, and the results of each load level.
`baton serve ENDPOINT` starts a service from it.
"""

from typing import Any

from baton.infra.storage.durable import write_json
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.manifest import read_manifest
from baton.tasks.models.adapter_base import BASE, model_of
from baton.tasks.serve.server import Server, engine_arguments, open_served
from baton.tasks.serve.smoke import smoke_test
from baton.tasks.serve.spec import ServeSpec

ENDPOINT = "endpoint.json"
MODEL = "model.json"  # in the record: the model's path, which is not part of the result


def work(job: Job) -> None:
    spec = job.spec(ServeSpec)
    opened = model_of(job)
    directory, base = opened.directory, None if opened.adapter is None else opened.weights
    label = read_manifest(directory).facts["label"]
    model = open_served(directory, base=base)
    job.empty_output()
    job.forget_after(0)  # drop the metrics of a killed attempt
    server = Server(spec, model, job.directory / "server.txt")
    try:
        levels = _measured(job, spec, server)
    finally:
        server.stop()
    best = max(levels, key=lambda level: level["requests_per_s"], default=None)
    paths = {"path": str(job.origin("model"))} | ({"base": str(job.origin(f"model.{BASE}"))} if base else {})
    write_json(job.record / MODEL, paths | {"digest": model.digest})
    job.finish(
        label=label,
        model_digest=model.digest,
        requests_per_s=best["requests_per_s"] if best else 0.0,
        tokens_per_s=max((level["tokens_per_s"] for level in levels), default=0.0),
        first_token_ms=levels[0]["first_token_ms"]["p50"] if levels else 0.0,
    )


def _measured(job: Job, spec: ServeSpec, server: Server) -> list[dict[str, Any]]:
    job.progress(0, 1, "steps", now="loading the model")
    if spec.load:
        from baton.tasks.serve.load import measure, requests  # imports vLLM while the server loads
    server.wait_until_healthy(lambda waited: job.progress(waited, spec.start_timeout_s, "s", now="loading the model"))
    started_s = server.age_s()
    answers = smoke_test(server.url, server.model, server.key)
    positions = read_manifest(server.model.directory).facts["max_positions"]
    if spec.max_model_len is None and answers.max_model_len < positions:
        job.notice(
            f"prompts and responses have at most {answers.max_model_len} tokens together: the KV cache has no room for "
            f"the model's {positions} positions. On a CPU raise serve.cpu_cache_gib (now {spec.cpu_cache_gib})"
        )
    levels: list[dict[str, Any]] = []
    if spec.load:
        total = sum(requests(spec.load, clients) for clients in spec.load.concurrency)
        job.progress(0, total, "requests")
        for level in measure(server, spec.load):
            if level["failed"] == level["requests"]:
                raise StageError(f"all requests of {level['concurrency']} clients failed: {level['errors']}")
            levels.append(level)
            job.metric(level["concurrency"], **_numbers(level))
            done = sum(measured["requests"] for measured in levels)
            job.progress(done, total, "requests", tokens_per_s=level["tokens_per_s"])
    write_json(
        job.output / ENDPOINT,
        {
            "model_digest": server.model.digest,
            "name": server.model.name,
            "engine": "vllm",
            "arguments": engine_arguments(spec),
            "started_s": started_s,
            "max_model_len": answers.max_model_len,
            "completion": answers.completion,
            "chat": answers.chat,
            "levels": levels,
        },
    )
    return levels


def _numbers(level: dict[str, Any]) -> dict[str, float]:
    """A level's metrics; their step is the number of clients."""
    names = ("failed", "requests_per_s", "tokens_per_s")
    latencies = {
        f"{name}_{percentile}": number
        for name, value in level.items()
        if isinstance(value, dict)
        for percentile, number in value.items()
    }
    return {name: float(level[name]) for name in names} | latencies


if __name__ == "__main__":
    main(work)
