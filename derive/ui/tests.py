"""The page of the catalog's tests: their steps, and their results with differences."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from derive.document.exact import dump_exact
from derive.protocol.specs import AdvanceStep, IngestStep, TestSpec, TestStep, show_offset
from derive.ui.access import Permissions
from derive.ui.rendering import page
from derive.ui.test_runs import TestRuns

_MOST_BODY = 10_000


async def show(request: Request) -> Response:
    """Return the page; a POST begins or stops a run of tests."""
    permissions: Permissions = request.app.state.permissions
    runs: TestRuns = request.app.state.test_runs
    if request.method == "POST":
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BODY:
                return Response("the request is too long\n", 413, media_type="text/plain")
        form = parse_qs(body.decode("utf-8", "replace"))
        if not permissions.runs_tests:
            return Response("flowctl ui --allow-tests permits to run tests\n", 403, media_type="text/plain")
        if not permissions.proves(request.headers, form.get("token", [""])[0]):
            return Response("load the page again: its token is missing or old\n", 403, media_type="text/plain")
        if "stop" in form:
            runs.stop()
        else:
            await asyncio.to_thread(runs.begin, form.get("name", [None])[0])
        return RedirectResponse("/tests", 303)
    return await asyncio.to_thread(_shown, request)


def _shown(request: Request) -> Response:
    runs: TestRuns = request.app.state.test_runs
    tests, run = runs.tests(), runs.last
    results = run.results if run else {}
    values = {
        "title": "Tests",
        "page": "Tests",
        "permissions": request.app.state.permissions,
        "source": str(request.app.state.folder.source),
        "run": run,
        "tests": [
            _Test(test.name, str(test.position), tuple(map(str, _steps(test))), _result(results.get(name)))
            for name, test in tests.items()
        ],
    }
    return page(request, "tests.html", values)


@dataclass(frozen=True, slots=True)
class _Test:
    """A test on the page.

    Attributes:
        name: its name.
        position: position in the catalog.
        steps: descriptions of its steps.
        result: row of its result with texts of the differences; None if it has not run.
    """

    name: str
    position: str
    steps: tuple[str, ...]
    result: dict[str, Any] | None


def _steps(test: TestSpec) -> Iterator[str]:
    for step in test.steps:
        yield _described(step, test.begin)


def _described(step: TestStep, begin: int) -> str:
    at = "" if step.time is None else f" at {show_offset(step.time.present, begin)}"
    if isinstance(step, AdvanceStep):
        return f"advance{at}"
    count = f"{len(step.documents):,} document{'' if len(step.documents) == 1 else 's'}"
    if isinstance(step, IngestStep):
        return f"ingest {count} into {step.collection}{at}"
    return f"verify {count} of {step.collection}{at}"


def _result(row: Any) -> dict[str, Any] | None:
    """Return a result whose differences are texts; `None` stands for a missing value."""
    if row is None:
        return None
    differences = [
        {name: dump_exact(difference[name]).decode() if name in difference else None for name in ("expected", "actual")}
        | {"key": difference["key"], "pointer": difference["pointer"]}
        for difference in row.get("differences", ())
    ]
    return {**row, "differences": differences}
