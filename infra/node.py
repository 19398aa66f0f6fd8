"""This machine's place among those of a run. A placement (infra/placement) says it in the environment,
in the words that torch.distributed has for it: NODE_RANK, MASTER_ADDR, MASTER_PORT."""

import os
from dataclasses import dataclass

from infra.errors import Stopped

VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


class NotPlaced(Stopped):
    """A run asks for several machines, and nothing says which of them this is."""


@dataclass(frozen=True)
class Node:
    """One of the machines of a run."""

    rank: int = 0
    nodes: int = 1
    address: str = ""  # of node 0, where the ranks meet
    port: int = 0

    def ranks(self, processes: int | None) -> range:
        """The ranks that run here, of so many on each machine."""
        here = processes or 1
        return range(self.rank * here, (self.rank + 1) * here)

    def torchrun(self) -> list[str]:
        """How torchrun is told."""
        if self.nodes == 1:
            return ["--standalone"]
        here = ["--nnodes", str(self.nodes), "--node-rank", str(self.rank)]
        return [*here, "--master-addr", self.address, "--master-port", str(self.port)]


def this_node(nodes: int) -> Node:
    """Raises NotPlaced."""
    if nodes == 1:
        return Node()
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise NotPlaced(
            f"layout.nodes: {nodes}: needs a placement that starts this on each machine and sets "
            f"{', '.join(VARIABLES)} ({', '.join(missing)} missing here); or layout.nodes: 1"
        )
    rank, address, port = (os.environ[name] for name in VARIABLES)
    return Node(int(rank), nodes, address, int(port))
