"""HTML of the pages: templates, and texts that are safe in them.

Jinja escapes every text. Control characters and bidirectional controls are shown as escapes, so that a document cannot
change the order of the text around it. The one HTML that is not a template is the picture of the data flow, which
escapes its texts itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from derive.cli.console import render_error, visible
from derive.errors import FlowError
from derive.plural import counted
from derive.ui.folder import Folder, Overview

PAGES = (
    ("/", "Catalog"),
    ("/collections", "Collections"),
    ("/tasks", "Tasks"),
    ("/tests", "Tests"),
    ("/quarantine", "Quarantine"),
    ("/sql", "SQL"),
)
"""URL and name of each page in the navigation."""

MOST_CHARACTERS = 4_000
"""Number of characters of a text that a page shows."""


_OLD = 5_000_000
"""Age in microseconds from which an overview is loaded again."""


_NOTE_CHARACTERS = 20


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text; if it is long, its beginning, and the number of the other characters.

    A text whose other characters need no more space than the number is returned whole.


    >>> cut("abcdefghijklmnopqrstuvwxyz", most=4), cut("abcdef", most=4)
    ('abcd … 22 more characters', 'abcdef')
    """
    if len(text) <= most + _NOTE_CHARACTERS:
        return text
    return f"{text[:most]} … {counted(len(text) - most, 'more character')}"


def path_of(name: str) -> str:
    """Return a name as a part of a URL's path; slashes of the name stay.

    >>> path_of("acmeBank/first send")
    'acmeBank/first%20send'
    """
    return quote(name, safe="/")


def short_time(text: str) -> str:
    """Return an RFC 3339 time without microseconds.

    >>> short_time("2024-01-01T10:00:00.000000Z")
    '2024-01-01 10:00:00'
    """
    return text[:19].replace("T", " ")


def duration(micros: float) -> str:
    """Return a short time as text.

    >>> duration(12.34), duration(222222.2), duration(4_000_000)
    ('12.3 µs', '222.2 ms', '4.0 s')
    """
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if micros >= size:
            return f"{micros / size:.1f} {unit}"
    return f"{micros:.1f} µs"


_EXCERPT = re.compile(r" *\d* \| ")


def excerpt(text: str) -> list[tuple[bool, str]]:
    r"""Return the parts of an error: whether a part is an excerpt, whose marks are below its text, and its lines.

    >>> excerpt("error: x\n  --> a.yaml:3:1\n3 | abc\n  | ^ y")
    [(False, 'error: x\n  --> a.yaml:3:1'), (True, '3 | abc\n  | ^ y')]
    """
    parts = groupby(text.split("\n"), lambda line: _EXCERPT.match(line) is not None)
    return [(is_excerpt, "\n".join(lines)) for is_excerpt, lines in parts]


def event(name: str, text: str) -> str:
    r"""Return a server-sent event.

    >>> event("rows", "<p>1</p>\n<p>2</p>")
    'event: rows\ndata: <p>1</p>\ndata: <p>2</p>\n\n'
    """
    lines = "".join(f"data: {line}\n" for line in re.split("\r\n|\r|\n", text))
    return f"event: {name}\n{lines}\n"


def sql_name(name: str) -> str:
    """Return the name that SQL shows for a collection, or for a table or view, by its name in Storage.

    >>> sql_name("shop/orders"), sql_name("sql/public/notes"), sql_name("sql/own/notes")
    ('shop/orders', 'notes', 'own.notes')
    """
    if not name.startswith("sql/"):
        return name
    schema, _, relation = name.removeprefix("sql/").partition("/")
    return relation if schema == "public" else f"{schema}.{relation}"


def select_of(name: str) -> str:
    """Return a query of a collection, or of a table or view of SQL, by its name in Storage.

    >>> select_of("shop/orders"), select_of("sql/public/notes")
    ('SELECT * FROM "shop/orders" LIMIT 50', 'SELECT * FROM "public"."notes" LIMIT 50')
    """
    parts = name.split("/", 2)[1:] if name.startswith("sql/") else [name]
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    return f"SELECT * FROM {quoted} LIMIT 50"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("derive.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        visible=visible,
        cut=cut,
        path=path_of,
        short_time=short_time,
        duration=duration,
        shell=shlex.quote,
        query=select_of,
        sql_name=sql_name,
        excerpt=excerpt,
    )
    return environment


_TEMPLATES = _environment()


def page(
    request: Request,
    template: str,
    values: Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """Return a page.

    Args:
        request: the request.
        template: name of the template.
        values: variables of the template; `title` and `page` (name of the page in the navigation) are required, and
            `version` is the version of the data folder if the page has a live part.
        status: status of the response.
        headers: further headers of the response.
    """
    place = str(request.app.state.folder.path)
    layout = "part.html" if "hx-request" in request.headers else "base.html"  # of a part of a page
    defaults = {"pages": PAGES, "place": place, "version": None, "layout": layout}
    text: str = _TEMPLATES.get_template(template).render({**defaults, **values})
    return HTMLResponse(text, status, {"cache-control": "no-store", **headers})


def live_overview(request: Request) -> tuple[Overview, str]:
    """Return the overview for a page, and the version that the page shows.

    A new page shows old times at once. Its version makes the first event follow at once, which loads the present times.
    """
    folder: Folder = request.app.state.folder
    overview = folder.overview(fresh="hx-request" in request.headers)
    is_old = folder.store().timeline.present() - overview.present > _OLD
    return overview, "old" if is_old else overview.version


async def error_page(request: Request, error: Exception) -> Response:
    """Return the page of an error, with the text that a command would print."""
    assert isinstance(error, FlowError)
    values = {"title": "Error", "page": None, "text": cut(render_error(error), 40_000)}
    return page(request, "error.html", values, 404 if _is_unknown(error) else 500)


def _is_unknown(error: FlowError) -> bool:
    from derive.errors import UsageError

    return isinstance(error, UsageError)
