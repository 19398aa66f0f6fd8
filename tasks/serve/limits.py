"""What a client may take of the proxy, and how long anything may take. Times are as nginx has them."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Sizes are in bytes, times in seconds."""

    connections: int = 1024  # open at a time; more are answered 503
    header_line: int = 8190  # the request line, and each header with its name
    headers: int = 64  # of one request: with all of them a connection takes 1 MiB
    header_s: float = 60  # for a request's headers to arrive, and for a connection to be idle
    body: int = 32 * MIB  # of one request
    bodies: int = 256 * MIB  # of all requests whose answers have not begun
    body_s: float = 60  # between two parts of a body
    whole_body_s: float = 300
    linger_s: float = 5  # for the rest of a body that was refused
    send_s: float = 60  # for a client to read some more of what was sent
    connect_s: float = 10  # to the backend
    first_byte_s: float = 600  # from the backend; an answer that is not streamed is generated in this time
    between_bytes_s: float = 300  # from the backend
