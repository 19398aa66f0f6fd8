"""The page at /chat: talk to the served models in a browser.

Its files are the same for all models, so they need no key. Its script asks the API beside it, with the key that the
reader enters.
"""

from functools import cache
from pathlib import Path

from aiohttp import hdrs, web

from baton import HERE as PACKAGE

HERE, LINEAGE = Path(__file__).parent / "static", PACKAGE / "infra/lineage/static"
FILES = {
    "/chat": (HERE / "chat.html", "text/html"),
    "/chat/chat.css": (HERE / "chat.css", "text/css"),
    "/chat/chat.js": (HERE / "chat.js", "text/javascript"),
    "/chat/style.css": (LINEAGE / "style.css", "text/css"),
    "/chat/icon.svg": (LINEAGE / "icon.svg", "image/svg+xml"),
}
METHODS = (hdrs.METH_GET, hdrs.METH_HEAD)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def response(path: str) -> web.Response:
    """Return the file of a path in FILES."""
    place, kind = FILES[path]
    return web.Response(body=_content(place), content_type=kind, charset="utf-8", headers=HEADERS)


@cache
def _content(place: Path) -> bytes:
    return place.read_bytes()
