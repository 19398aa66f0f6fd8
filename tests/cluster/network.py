"""A pod's network: a separate loopback, from which only a few servers of this machine can be reached.

Each server's port is relayed twice: from the pod's namespace to a Unix socket, and from this socket to the server. This
file also runs in the namespace, as `python -c`, so it imports nothing but the standard library.
"""

import fcntl
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

LOCAL = re.compile(r"\b127\.0\.0\.1:(\d+)")
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41

Connect = Callable[[], socket.socket]


class Network:
    """The Unix sockets of the servers that pods may reach."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="pods-")  # short, since a socket's path is limited to 107 characters
        self.folder = Path(self._folder.name)
        self._lock = threading.Lock()

    def reach(self, words: Iterable[str]) -> list[str]:
        """Let pods reach the local servers whose addresses occur in the given strings; returns their ports."""
        ports = sorted({port for each in words for port in LOCAL.findall(each)})
        with self._lock:
            for port in ports:
                path = self.folder / port
                if not path.exists():
                    listener = socket.socket(socket.AF_UNIX)
                    listener.bind(str(path))
                    listener.listen(128)
                    _in_background(_relay, listener, _to_port(int(port)))
        return ports


def _to_port(port: int) -> Connect:
    return lambda: socket.create_connection(("127.0.0.1", port))


def _to_socket(path: str) -> Connect:
    def connect() -> socket.socket:
        found = socket.socket(socket.AF_UNIX)
        found.connect(path)
        return found

    return connect


def _relay(listener: socket.socket, connect: Connect) -> None:
    while True:
        near, _ = listener.accept()
        try:
            far = connect()
        except OSError:  # the server is gone, and the client sees a closed connection
            near.close()
            continue
        _in_background(_copy, near, far)
        _in_background(_copy, far, near)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            end.close()


def _in_background(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def inside(folder: str, *ports: str) -> None:
    """Relay the ports inside a pod's namespace in a child process; returns when the servers can be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP_RUNNING))
    listeners = [socket.create_server(("127.0.0.1", int(port)), backlog=128) for port in ports]
    if os.fork():
        os._exit(0)
    for port, listener in zip(ports, listeners, strict=True):
        _in_background(_relay, listener, _to_socket(f"{folder}/{port}"))
    threading.Event().wait()


if __name__ == "__main__":
    inside(*sys.argv[1:])
