"""Run `baton serve --follow` with small servers instead of vLLM, so that a version is ready in a second.

python -m tests.serve.follow_small NAME
"""

import sys
from functools import partial
from pathlib import Path

from baton.infra.paths import baton_home
from baton.infra.progress import say
from baton.tasks.serve.active import Active
from baton.tasks.serve.follow import Follower
from baton.tasks.serve.limits import RequestLimits
from baton.tasks.serve.server import Served, Server, reserve
from baton.tasks.serve.service import run_service
from baton.tasks.serve.spec import ServeSpec
from baton.tasks.serve.switch import Switch

HEALTH_S = 3.0


def start(spec: ServeSpec, home: Path, model: Served) -> Server:
    return Server(spec, model, home / f"{model.digest[:12]}.log", module="tests.serve.small_server")


if __name__ == "__main__":
    quick = ServeSpec(start_timeout_s=4)
    switch = Switch()
    active = Active(switch, partial(start, quick, baton_home() / "serve"), health_s=HEALTH_S, drain_s=20, retry_s=0.3)
    follower = Follower(sys.argv[1], "champion", 0.3, active)
    with reserve("127.0.0.1", 0) as bound:
        say(f"http://127.0.0.1:{bound.getsockname()[1]}/v1")
        run_service(switch, bound, 20, follower.run, RequestLimits(connections=200))
