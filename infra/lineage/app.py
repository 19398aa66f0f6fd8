"""The web page: routes, templates, and the way into MLflow's own server.

Every page is read-only, GET alone, and has a JSON twin at the same address with `.json`. Nothing is
loaded from elsewhere (see the policy), and without JavaScript everything can be read.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from infra.lineage.database import open_database
from infra.lineage.draw import brief
from infra.lineage.graph import UnknownNode
from infra.lineage.openlineage import events
from infra.lineage.pages import Page, Pages
from infra.text import count, duration, encodable, measure, number, share, size, value, words
from infra.tracking.redact import redact_text

MOUNT = "/lineage"
HERE = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Work = Callable[[Request], Page]


def alone(store: str | None = None, hosts: Sequence[str] = ("*",)) -> Starlette:
    """Baton's pages without MLflow's, for requests that name one of the `hosts`. Raises LineageUnavailable."""
    only = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return Starlette(routes=[*_routes(store, mlflow=False), Route("/", _home)], middleware=[only])


def with_mlflow(store: str | None = None) -> Any:
    """MLflow's own server with Baton's pages at /lineage: one port for both. Raises LineageUnavailable."""
    from mlflow.server.fastapi_app import create_fastapi_app

    import infra.tracking.sqlite  # noqa: F401 - MLflow's engine may open the store's file, and never make it

    app = create_fastapi_app()
    app.router.routes[:0] = _routes(store, mlflow=True)  # MLflow's own is mounted at /, after them
    return app


def _routes(store: str | None, mlflow: bool) -> list[BaseRoute]:
    """The pages; their address is complete without its last stroke too, which a mount alone does not answer."""
    return [Route(MOUNT, _home), Mount(MOUNT, _site(store, mlflow))]


async def _home(request: Request) -> Response:
    return RedirectResponse(f"{MOUNT}/executions")


def _site(store: str | None, mlflow: bool) -> Starlette:
    pages = Pages(open_database(store), MOUNT)
    threading.Thread(target=pages.graph.refresh, daemon=True).start()  # read once, before the first visitor asks
    templates = _templates(mlflow)

    def page(path: str, template: str, work: Work) -> list[Route]:
        async def html(request: Request) -> Response:
            found = await run_in_threadpool(work, request)
            told = {"request": request, "base": str(request.base_url).rstrip("/") + MOUNT, "now": time.time()}
            text = await run_in_threadpool(templates.get_template(template).render, **told, page=found)
            return Response(encodable(text), media_type="text/html", headers=HEADERS)

        async def twin(request: Request) -> Response:
            return _json(_shown(await run_in_threadpool(work, request)))

        return [Route(f"{path}.json", twin), Route(path, html)]

    def data(path: str, work: Callable[[Request], Any]) -> Route:
        async def answer(request: Request) -> Response:
            return _json(_shown(await run_in_threadpool(work, request)))

        return Route(path, answer)

    def openlineage(request: Request) -> Any:
        graph, id = pages.graph.refresh(), request.path_params["id"]
        if id in graph.executions:
            runs = [run.id for run in graph.stages(id)]
        else:
            runs = [node for node in graph.ancestors(graph.resolve(id)) if node in graph.runs]
        with pages.engine.connect() as connection:
            return events(graph, connection, runs)

    async def search(request: Request) -> Response:
        """A digest leads to its artifact, anything else to the list."""
        asked = request.query_params.get("q", "").strip()
        try:
            digest = await run_in_threadpool(lambda: pages.graph.refresh().resolve(asked))
        except UnknownNode:
            return RedirectResponse(f"{MOUNT}/executions?q={quote(asked)}")
        return RedirectResponse(f"{MOUNT}/artifacts/{quote(digest)}")

    def one(work: Callable[[str, Any], Page]) -> Work:
        return lambda request: work(request.path_params["id"], request.query_params)

    return Starlette(
        routes=[
            Route("/", _home),
            Route("/search", search),
            Mount("/static", StaticFiles(directory=HERE / "static")),
            data("/executions/{id}/recipe.json", lambda request: pages.recipe(request.path_params["id"])),
            data("/executions/{id}/openlineage.json", openlineage),
            data("/artifacts/{id}/openlineage.json", openlineage),
            *page("/executions", "executions.html", lambda request: pages.executions(request.query_params)),
            *page("/executions/{id}", "execution.html", one(pages.execution)),
            *page("/runs/{id}", "run.html", one(pages.run)),
            *page("/artifacts/{id}", "artifact.html", one(pages.artifact)),
            *page("/compare", "compare.html", lambda request: pages.compare(request.query_params)),
            *page("/models", "models.html", lambda request: pages.models(request.query_params)),
        ],
        exception_handlers={
            UnknownNode: _failed(templates, 404),
            HTTPException: _failed(templates, 404),
            SQLAlchemyError: _failed(templates, 503),
        },
    )


def _templates(mlflow: bool) -> Environment:
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    found.globals |= {"mount": MOUNT, "mlflow": mlflow}
    written = (brief, count, duration, number, share, size, value, words)
    found.filters |= {each.__name__: each for each in written} | {"ago": _ago, "when": _when, "measure": _measure}
    return found


def _failed(templates: Environment, status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        code = error.status_code if isinstance(error, HTTPException) else status
        said = redact_text(str(getattr(error, "detail", error))).partition("\n")[0]
        if request.url.path.endswith(".json"):
            return JSONResponse({"error": said}, status_code=code, headers=HEADERS)
        text = templates.get_template("error.html").render(request=request, page={"title": str(code), "said": said})
        return Response(encodable(text), status_code=code, media_type="text/html", headers=HEADERS)

    return answer


def _shown(found: Any) -> Any:
    """Without the drawings."""
    if isinstance(found, dict):
        return {name: _shown(each) for name, each in found.items() if not name.startswith("_")}
    if isinstance(found, float) and not math.isfinite(found):
        return None  # JSON has no word for it
    return [_shown(each) for each in found] if isinstance(found, list) else found


def _json(found: Any) -> Response:
    return Response(json.dumps(found, indent=1), media_type="application/json", headers=HEADERS)


def _ago(seconds: float, now: float) -> str:
    return f"{brief(max(0.0, now - seconds))} ago"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _measure(value: float | None, unit: str = "") -> str:
    """A metric in its unit."""
    return "–" if value is None else measure(value, unit)
