"""Limits of the proxy: connections, sizes and timeouts. The timeouts correspond to nginx's."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class RequestLimits:
    """Sizes in bytes, times in seconds."""

    connections: int = 1024  # open connections; further ones get 503
    header_line: int = 8190  # the request line, or a header with its name
    headers: int = 64  # per request: a connection takes 1 MiB with all of them
    header_s: float = 60  # to receive a request's headers, and for an idle connection
    body: int = 32 * MIB  # the body of one request
    bodies: int = 256 * MIB  # the bodies of all requests that have no response yet
    body_s: float = 60  # between two parts of a body
    whole_body_s: float = 300
    linger_s: float = 5  # to receive the rest of a refused body
    send_s: float = 60  # for a client to acknowledge sent data
    connect_s: float = 10  # to connect to the backend
    first_byte_s: float = 600  # until the backend's first byte, or all of a response that is not streamed
    between_bytes_s: float = 300  # between two parts of the backend's response
