"""The application: URLs, and the functions that answer them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, fields
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from derive.cli.graph_picture import STYLE
from derive.errors import FlowError
from derive.ui import collections, overview, sql, tasks, tests
from derive.ui.access import Guard, Permissions, Secret
from derive.ui.folder import Folder
from derive.ui.rendering import error_page, event, page
from derive.ui.subscriptions import Subscriptions
from derive.ui.test_runs import TestRuns
from derive.ui.watcher import Watcher

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_STATIC = {
    file.name: (file.read_bytes(), _TYPES[file.name.rpartition(".")[2]])
    for file in (files("derive.ui") / "static").iterdir()
    if file.name.rpartition(".")[2] in _TYPES
}
"""Content and type of each static file, by name."""

_CACHED = {"cache-control": "max-age=3600"}


@dataclass(frozen=True, slots=True)
class Services:
    """The services of a server.

    Attributes:
        folder: the data folder.
        permissions: the permitted actions besides reading.
        watcher: the notifications of pages.
        subscriptions: the subscriptions of pages.
        test_runs: the runs of tests.
    """

    folder: Folder
    permissions: Permissions
    watcher: Watcher
    subscriptions: Subscriptions
    test_runs: TestRuns

    @staticmethod
    def of(folder: Folder, permissions: Permissions | None = None) -> Services:
        """Return the services of a data folder; without permissions, its pages only read."""
        return Services(folder, permissions or Permissions(), Watcher(folder), Subscriptions(folder), TestRuns(folder))

    def close(self) -> None:
        """End streams, subscriptions and runs of tests."""
        self.watcher.close()
        self.subscriptions.close()
        self.test_runs.close()


def application(
    services: Services, hosts: Collection[str], secret: Secret | None = None, scheme: str = "http"
) -> Guard:
    """Return the application of a data folder.

    Args:
        services: the services of the pages.
        hosts: host names and addresses of the server, in lower case.
        secret: the secret that clients must send; None for none.
        scheme: `http` or `https`.
    """
    pages = Starlette(
        routes=[
            Route("/", overview.show),
            Route("/collections", collections.show_list),
            Route("/collections/{name:path}", collections.show),
            Route("/documents/{name:path}", collections.show_documents),
            Route("/why/collections/{name:path}", collections.explain),
            Route("/tasks", tasks.show_list),
            Route("/tasks/{name:path}", tasks.show),
            Route("/state/{name:path}", tasks.show_state),
            Route("/quarantine", tasks.show_quarantine),
            Route("/tests", tests.show, methods=["GET", "POST"]),
            Route("/sql", sql.show, methods=["GET", "POST"]),
            Route("/sql/rows", sql.follow),
            Route("/sql/names", sql.complete),
            Route("/events", _events),
            Route("/picture.css", _picture_style),
            Route("/static/{name}", _static),
        ],
        exception_handlers={FlowError: error_page, 404: _missing},
    )
    for attribute in fields(services):
        setattr(pages.state, attribute.name, getattr(services, attribute.name))
    return Guard(pages, hosts, secret, scheme)


async def _events(request: Request) -> Response:
    """Return the stream of events, as server-sent events."""
    watcher: Watcher = request.app.state.watcher

    async def messages() -> AsyncIterator[str]:
        yield ": begin\n\n"
        async for version in watcher.events(request.query_params.get("since", "")):
            yield event("change", version)

    return StreamingResponse(messages(), media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _static(request: Request) -> Response:
    content, media_type = _STATIC.get(request.path_params["name"], (None, ""))
    if content is None:
        return await _missing(request, FileNotFoundError())
    return Response(content, media_type=media_type, headers=_CACHED)


async def _picture_style(_: Request) -> Response:
    """Return the styles of pictures, which `flowctl graph` writes into the pictures."""
    return Response(STYLE, media_type="text/css", headers=_CACHED)


async def _missing(request: Request, _: Exception) -> Response:
    return page(request, "error.html", {"title": "No such page", "page": None, "text": request.url.path}, 404)
