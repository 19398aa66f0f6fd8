"""A stage on two nodes that share only S3 and no folder: processes in separate homes, as a placement starts them."""

import socket
from pathlib import Path

from tests.s3 import S3
from tests.stage.pod import Pod, start


class Nodes:
    """Both nodes of a job, each with a separate home. The files on their disks are lost with them."""

    def __init__(self, s3: S3, folder: Path, storage: str, *words: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        self.pods = [start(s3, folder, storage, *words, NODE_RANK=str(rank), **meeting) for rank in (0, 1)]

    def succeed(self) -> Pod:
        """Wait until both succeed, and return the first node, which has the result."""
        _, output = self.pods[1].process.communicate()
        assert self.pods[1].process.returncode == 0, output[-5000:]
        return self.pods[0]

    def kill(self) -> None:
        for pod in self.pods:
            if pod.process.poll() is None:
                pod.kill()
