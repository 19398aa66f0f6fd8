"""Run the proxy in front of a server that echoes bodies, as one process: python -m tests.serve.echo_service"""

import asyncio

from baton.tasks.serve.limits import RequestLimits
from baton.tasks.serve.server import reserve
from baton.tasks.serve.service import answer
from baton.tasks.serve.switch import Backend, Switch
from tests.serve.test_limits import backend
from tests.serve.test_proxy import running

QUICK = RequestLimits(header_s=1, body_s=1, whole_body_s=1, linger_s=0.5)


async def main() -> None:
    switch = Switch()
    with running(backend()) as url, reserve("127.0.0.1", 0) as bound:
        switch.turn(Backend(url, "aa" * 32))
        print(f"port {bound.getsockname()[1]}", flush=True)
        await answer(switch, bound, 5, QUICK, asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main())
