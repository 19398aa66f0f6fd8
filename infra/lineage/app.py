"""The web application: routes, templates, and how it is mounted in MLflow's server.

Every page is read-only (GET only) and has a JSON twin at the same address with `.json`. The content security policy
allows nothing from other hosts, and all content can be read without JavaScript.
"""

import json
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
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from baton.infra.lineage import files
from baton.infra.lineage.database import open_database
from baton.infra.lineage.executions import QueryRefused
from baton.infra.lineage.graph import UnknownNode
from baton.infra.lineage.openlineage import events
from baton.infra.lineage.pages import MOUNT, Page, Pages, as_json
from baton.infra.storage.buckets import StorageError
from baton.infra.text import brief, count, duration, encodable, measure, number, share, size, value, words
from baton.infra.tracking.redact import redact_text

HERE = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# a file of an artifact is shown as it is, without scripts and in a separate origin
FILE_HEADERS = HEADERS | {
    "Content-Security-Policy": "sandbox allow-popups allow-top-navigation-by-user-activation; default-src 'none'; "
    "style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
}
SHOWN = {".html": "text/html", ".json": "application/json", ".png": "image/png", ".svg": "image/svg+xml"}
TEXT = (".txt", ".md", ".jsonl", ".yaml", ".jinja", ".py", ".csv")

LONGEST_MESSAGE = 1000

Work = Callable[[Request], Page]


def alone(store: str | None = None, hosts: Sequence[str] = ("*",)) -> Starlette:
    """Baton's pages alone, for requests to one of the `hosts`. Raises LineageUnavailable."""
    only = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return Starlette(routes=[*_routes(store, mlflow=False), Route("/", _home)], middleware=[only])


def with_mlflow(store: str | None = None) -> Any:
    """MLflow's own server with Baton's pages at /lineage: one port for both. Raises LineageUnavailable."""
    from mlflow.server.fastapi_app import create_fastapi_app

    import baton.infra.tracking.sqlite  # noqa: F401 - lets MLflow's engine open the store's file, but never create it

    app = create_fastapi_app()
    app.router.routes[:0] = _routes(store, mlflow=True)  # before MLflow's own app, which is mounted at /
    return app


def _routes(store: str | None, mlflow: bool) -> list[BaseRoute]:
    """The pages, also at their address without the trailing slash, which a mount alone does not serve."""
    return [Route(MOUNT, _home), Mount(MOUNT, _site(store, mlflow))]


async def _home(request: Request) -> Response:
    return RedirectResponse(f"{MOUNT}/executions")


def _site(store: str | None, mlflow: bool) -> Starlette:
    pages = Pages(open_database(store), MOUNT)
    threading.Thread(target=pages.graph.refresh, daemon=True).start()  # loads the graph before the first request
    templates = _templates(mlflow)

    def page(path: str, template: str, work: Work) -> list[Route]:
        async def html(request: Request) -> Response:
            content = await run_in_threadpool(work, request)
            context = {"request": request, "base": str(request.base_url).rstrip("/") + MOUNT, "now": time.time()}
            text = await run_in_threadpool(templates.get_template(template).render, **context, page=content)
            return Response(encodable(text), media_type="text/html", headers=HEADERS)

        return [data(f"{path}.json", work), Route(path, html)]

    def data(path: str, work: Callable[[Request], Any]) -> Route:
        async def answer(request: Request) -> Response:
            content = json.dumps(as_json(await run_in_threadpool(work, request)), indent=1)
            return Response(content, media_type="application/json", headers=HEADERS)

        return Route(path, answer)

    def openlineage(request: Request) -> Any:
        graph, id = pages.graph.refresh(), request.path_params["id"]
        runs = (
            [run.id for run in graph.stages(id)]
            if id in graph.executions
            else graph.ancestry.history(graph.resolve(id))
        )
        with pages.engine.connect() as connection:
            return events(graph, connection, runs)

    search_page = page("/search", "search.html", lambda request: pages.search(request.query_params))[1].endpoint

    async def search(request: Request) -> Response:
        """Open the page of a digest or of an execution's id, and show what matches any other query."""
        if address := await run_in_threadpool(pages.opened, request.query_params):
            return RedirectResponse(address)
        found: Response = await search_page(request)
        return found

    async def file(request: Request) -> Response:
        """One file of an artifact, text without its secrets: shown where a browser can, else downloaded."""
        name = request.path_params["name"]
        path = await run_in_threadpool(pages.file, request.path_params["id"], name)
        kind = SHOWN.get(path.suffix) or ("text/plain" if path.suffix in TEXT else None)
        show = kind is not None and "download" not in request.query_params
        disposition, media = "inline" if show else "attachment", kind or "application/octet-stream"
        pieces = await run_in_threadpool(files.shown, path)
        if pieces is None:
            return FileResponse(
                path, headers=FILE_HEADERS, media_type=media, filename=path.name, content_disposition_type=disposition
            )
        named = {"Content-Disposition": f"{disposition}; filename*=utf-8''{quote(path.name)}"}
        return StreamingResponse(map(encodable, pieces), media_type=media, headers=FILE_HEADERS | named)

    async def folder(request: Request) -> Response:
        """An artifact's folder as a tar file."""
        packed = await run_in_threadpool(pages.archive, request.path_params["id"])
        named = {"Content-Disposition": f'attachment; filename="{packed.name}"', "Content-Length": str(packed.size)}
        if request.method == "HEAD":
            return Response(media_type="application/x-tar", headers=FILE_HEADERS | named)
        return StreamingResponse(packed.chunks(), media_type="application/x-tar", headers=FILE_HEADERS | named)

    async def full_log(request: Request) -> Response:
        chunks = await run_in_threadpool(pages.full_log, request.path_params["id"])
        return StreamingResponse(chunks, media_type="text/plain; charset=utf-8", headers=HEADERS)

    async def diff(request: Request) -> Response:
        text = await run_in_threadpool(pages.diff, request.path_params["id"])
        return Response(encodable(text), media_type="text/plain; charset=utf-8", headers=HEADERS)

    def one(work: Callable[[str, Any], Page]) -> Work:
        return lambda request: work(request.path_params["id"], request.query_params)

    return Starlette(
        routes=[
            Route("/", _home),
            data("/search.json", lambda request: pages.search(request.query_params)),
            Route("/search", search),
            Mount("/static", StaticFiles(directory=HERE / "static")),
            data("/executions/{id}/recipe.json", lambda request: pages.recipe(request.path_params["id"])),
            Route("/executions/{id}/repository.diff", diff),
            data("/executions/{id}/openlineage.json", openlineage),
            data("/artifacts/{id}/openlineage.json", openlineage),
            Route("/artifacts/{id}/files/{name:path}", file),
            Route("/artifacts/{id}/folder.tar", folder),
            Route("/runs/{id}/log.txt", full_log),
            *page("/runs/{id}/log", "log.html", one(pages.log)),
            *page("/executions", "executions.html", lambda request: pages.executions(request.query_params)),
            *page("/executions/{id}", "execution.html", one(pages.execution)),
            *page("/runs/{id}", "run.html", one(pages.run)),
            *page("/artifacts/{id}", "artifact.html", one(pages.artifact)),
            *page("/compare", "compare.html", lambda request: pages.compare(request.query_params)),
            *page("/models", "models.html", lambda request: pages.models(request.query_params)),
            *page("/metrics", "metrics.html", lambda request: pages.metrics(request.query_params)),
        ],
        exception_handlers={
            UnknownNode: _failed(templates, 404),
            QueryRefused: _failed(templates, 400),
            HTTPException: _failed(templates, 404),
            SQLAlchemyError: _failed(templates, 503),
            StorageError: _failed(templates, 503),
        },
    )


def _templates(mlflow: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals |= {"mount": MOUNT, "mlflow": mlflow}
    formats = (brief, count, duration, number, share, size, value, words)
    environment.filters |= {f.__name__: f for f in formats} | {"ago": _ago, "when": _when, "measure": _measure}
    return environment


def _failed(templates: Environment, status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        code = error.status_code if isinstance(error, HTTPException) else status
        message = redact_text(str(getattr(error, "detail", error))[:LONGEST_MESSAGE]).partition("\n")[0]
        if request.url.path.endswith(".json"):
            return JSONResponse({"error": message}, status_code=code, headers=HEADERS)
        text = templates.get_template("error.html").render(
            request=request, page={"title": str(code), "message": message}
        )
        return Response(encodable(text), status_code=code, media_type="text/html", headers=HEADERS)

    return answer


def _ago(seconds: float, now: float) -> str:
    return f"{brief(max(0.0, now - seconds))} ago"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _measure(value: float | None, unit: str = "") -> str:
    """A metric in its unit."""
    return "–" if value is None else measure(value, unit)
