"""This machine's rank among a run's nodes. A placement (infra/placement) sets it in torch.distributed's environment
variables: NODE_RANK, MASTER_ADDR, MASTER_PORT."""

import os
from dataclasses import dataclass

from baton.infra.errors import UserError

VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
COLLECTIVE_S = 7 * 86400  # torch's timeout: launchers find a hung rank by heartbeats, and a long save is no hang
ADDRESS = "BATON_NODE_0"  # node 0's address for engines: torchrun on one machine sets MASTER_ADDR to its own


class NotPlaced(UserError):
    """A run needs several machines, and this one's rank is not set."""


@dataclass(frozen=True)
class Node:
    """One of a run's machines."""

    rank: int = 0
    nodes: int = 1
    address: str = ""  # address of node 0
    port: int = 0

    def ranks(self, processes: int | None) -> range:
        """Return the ranks on this machine, with this many processes on each machine."""
        count = processes or 1
        return range(self.rank * count, (self.rank + 1) * count)

    def others(self, processes: int | None) -> list[int]:
        """Return one rank of each other machine; none where no ranks work together."""
        return [node * processes for node in range(self.nodes) if node != self.rank] if processes else []

    def torchrun(self) -> list[str]:
        """Return torchrun's options."""
        if self.nodes == 1:
            return ["--standalone"]
        options = ["--nnodes", str(self.nodes), "--node-rank", str(self.rank)]
        return [*options, "--master-addr", self.address, "--master-port", str(self.port)]


def is_first_node() -> bool:
    """Return whether this machine is the first of a run's nodes, or the only one."""
    return os.environ.get(VARIABLES[0], "0") == "0"


def placed_nodes(nodes: int) -> int:
    """Return `nodes` if a placement has started this on each of them; else 1, for work that one machine can do too."""
    return nodes if VARIABLES[0] in os.environ else 1


def this_node(nodes: int, helpers: int = 0) -> Node:
    """Return this machine among `nodes` and the `helpers` beside them. Raises NotPlaced."""
    if nodes + helpers == 1:
        return Node()
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        more = f" and {helpers} for servers" if helpers else ""
        raise NotPlaced(
            f"layout.nodes: {nodes}{more}: needs a placement, which starts this on each machine and sets "
            f"{', '.join(VARIABLES)} ({', '.join(missing)} missing here); or set layout.nodes: 1"
            f"{' and the nodes of the servers to 0' if helpers else ''}"
        )
    rank, address, port = (os.environ[name] for name in VARIABLES)
    return Node(int(rank), nodes + helpers, address, int(port))
