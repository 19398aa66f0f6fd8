"""Connect a trainer with its rollout engines; both sides prove that they know a token.

Anything that reaches the trainer's port can connect, such as a port scan or a load balancer's probe. So each connection
is authenticated in a separate thread within a time limit, and at most PENDING at the same time: a further connection
replaces the oldest, since an engine needs only milliseconds. The proof is that of `multiprocessing.connection`, whose
own listener authenticates one connection after the other, without a time limit.
"""

import os
import queue
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from baton.infra.progress import say

HANDSHAKE_S = 10.0
PENDING = 64  # connections that are not yet authenticated; also the listener's backlog
PAUSE_S = 0.1  # pause after a connection that could not be accepted
# Exceptions that the other side can cause; answer_challenge asserts the form of its message
REFUSED = (AuthenticationError, AssertionError, EOFError, OSError)


def connect(address: str, port: int, token: bytes) -> Connection:
    """Connect to a RolloutListener. Raises one of REFUSED."""
    with socket.create_connection((address, port), HANDSHAKE_S) as peer:
        peer.settimeout(None)
        return _authenticated(peer, token, listener=False)


def _authenticated(peer: socket.socket, token: bytes, listener: bool) -> Connection:
    """Return the connection after both sides have proved that they know the token. Raises one of REFUSED."""
    connection = Connection(os.dup(peer.fileno()))
    began, overdue = time.monotonic(), threading.Timer(HANDSHAKE_S, _end, [peer])
    overdue.start()
    try:
        for prove in (deliver_challenge, answer_challenge) if listener else (answer_challenge, deliver_challenge):
            prove(connection, token)
        if time.monotonic() - began >= HANDSHAKE_S:  # `overdue` may just have ended the connection
            raise EOFError
    except BaseException:
        connection.close()
        raise
    finally:
        overdue.cancel()
    return connection


def _end(peer: socket.socket) -> None:
    """Wake up a thread that waits for this peer."""
    with suppress(OSError):  # the peer is gone
        peer.shutdown(socket.SHUT_RDWR)


class RolloutListener:
    """Accepts connections on a free port until it is closed."""

    def __init__(self, address: str, token: bytes) -> None:
        """Listen on `address`, or on all of this machine's addresses if it is empty."""
        self.accepted: queue.SimpleQueue[Connection] = queue.SimpleQueue()  # connections of peers with the token
        self.refused = 0
        self._token = token
        self._pending: deque[socket.socket] = deque()  # oldest first
        self._lock = threading.Lock()
        self._closed = False
        self._socket = socket.create_server((address, 0), backlog=PENDING)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name="rollout listener", daemon=True).start()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        _end(self._socket)
        self._socket.close()
        with self._lock:
            for peer in self._pending:
                _end(peer)
        if self.refused > 1:
            say(f"{self.refused} connections to port {self.port} were refused")

    def _accept(self) -> None:
        while not self._closed:
            try:
                peer, (address, _) = self._socket.accept()
            except OSError:  # the listener is closed, the peer is gone, or there are too many open files
                time.sleep(PAUSE_S)
                continue
            with self._lock:
                self._pending.append(peer)
                if len(self._pending) > PENDING:
                    _end(self._pending.popleft())
            threading.Thread(target=self._authenticate, args=(peer, address), daemon=True).start()

    def _authenticate(self, peer: socket.socket, address: str) -> None:
        connection = None
        try:
            connection = _authenticated(peer, self._token, listener=True)
        except REFUSED:
            self._refuse(address)
        with self._lock, peer:
            if pending := peer in self._pending:  # if not, a newer connection has replaced it
                self._pending.remove(peer)
        if connection and pending:
            self.accepted.put(connection)

    def _refuse(self, address: str) -> None:
        with self._lock:
            self.refused += 1
            if self.refused == 1 and not self._closed:
                say(
                    f"a connection from {address} to port {self.port}, for the rollout servers, was refused: it did "
                    f"not prove within {HANDSHAKE_S:g} s that it knows their token. Further refusals are only counted"
                )
