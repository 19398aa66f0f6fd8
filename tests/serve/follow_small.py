"""`python -m tasks.serve --follow` with small servers in vLLM's place, so that a version is ready in a second.

python -m tests.serve.follow_small NAME
"""

import sys
from functools import partial
from pathlib import Path

from infra.home import baton_home
from infra.progress import say
from tasks.serve.follow import Follower
from tasks.serve.proxy import Switch
from tasks.serve.server import Served, Server, reserve
from tasks.serve.service import run_service
from tasks.serve.spec import ServeSpec


def start(spec: ServeSpec, home: Path, model: Served) -> Server:
    return Server(spec, model, home / f"{model.digest[:12]}.log", module="tests.serve.small_server")


if __name__ == "__main__":
    quick = ServeSpec(start_timeout_s=4)
    switch = Switch()
    follower = Follower(sys.argv[1], "champion", 0.3, 20, switch, partial(start, quick, baton_home() / "serve"))
    with reserve("127.0.0.1", 0) as bound:
        say(f"http://127.0.0.1:{bound.getsockname()[1]}/v1")
        run_service(switch, bound, 20, follower.keep)
