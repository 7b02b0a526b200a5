"""Pages of tasks: a derivation with its lambdas, a materialization with its bindings, state, log and quarantine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from derive.catalog.graph import flow_graph
from derive.cli.console import render_error
from derive.cli.options import catalog_with_shadows
from derive.document.clock import format_rfc3339
from derive.document.exact import dump_exact
from derive.engine.quarantine import Choice, open_entries
from derive.errors import FlowError
from derive.position import Script
from derive.protocol.specs import BindingSpec, CatalogSpec, DerivationSpec, MaterializationSpec
from derive.shard.inspection import StateQuery, copied_states
from derive.storage.task_log import Entry, recent_entries
from derive.ui.folder import Folder, Overview
from derive.ui.overview import reasons
from derive.ui.rendering import live_overview, page

_LOG_BYTES = 256 << 10
_LOG_ENTRIES = 100
_COMMITS = 12
_ENTRIES = 50
_SHARDS = 8
_STATE_ROWS = 100
_STATE_SECONDS, _STATE_MEGABYTES = 20.0, 256
_STATE_TURN = threading.Lock()
"""The limit of SQLite's memory belongs to the process, so queries of states take turns."""


def show(request: Request) -> Response:
    """Return the page of one task."""
    folder: Folder = request.app.state.folder
    overview, version = live_overview(request)
    spec = overview.catalog.find_task(request.path_params["name"])
    task = overview.tasks[spec.name]
    entries = recent_entries(folder.path, spec.name, _LOG_BYTES)
    values: dict[str, Any] = {
        "title": spec.name,
        "page": "Tasks",
        "version": version,
        "name": spec.name,
        "row": task.row,
        "error": task.error and render_error(task.error),
        "reasons": [] if task.error else reasons(task),
        "micros": 1e6 / task.row["rate"] if task.row["rate"] else None,
        "inputs": list(_inputs(folder, overview, spec)),
        "modules": list(_modules(spec)),
        "commits": [entry for entry in entries if entry.get("documents_in")][: -_COMMITS - 1 : -1],
        "log": [_described(entry) for entry in entries[: -_LOG_ENTRIES - 1 : -1]],
    }
    if isinstance(spec, DerivationSpec):
        return page(request, "derivation.html", {**values, "connector": spec.connector})
    state = folder.store().task(spec.name)
    values["checkpoint"] = sorted(state.tokens.items())[:_SHARDS] if state else []
    values["row_rate"] = _row_rate(values["commits"])
    return page(request, "materialization.html", {**values, "endpoint": _endpoint(overview.catalog, spec)})


def _row_rate(commits: Sequence[Entry]) -> int | None:
    """Return the number of rows per second of the last transactions; None without one."""
    seconds = sum(entry["seconds"] for entry in commits)
    return round(sum(entry.get("documents_out", 0) for entry in commits) / seconds) if seconds else None


def show_list(request: Request) -> Response:
    """Return the page with all tasks: derivations, and then materializations."""
    overview, version = live_overview(request)
    materializations = overview.catalog.materializations
    values = {
        "title": "Tasks",
        "page": "Tasks",
        "version": version,
        "tasks": overview.tasks,
        "kinds": {name: "materialization" if name in materializations else "derivation" for name in overview.tasks},
        "reasons": reasons,
    }
    return page(request, "tasks.html", values)


@dataclass(frozen=True, slots=True)
class _Input:
    """An input of a task: a transform or a binding.

    Attributes:
        name: name of the transform, or label of the binding.
        source: name of the collection.
        notes: properties of the read.
        script: code of the lambda; None for a binding, or for a method of a module.
        resource: JSON of the resource of the endpoint; None for a transform.
        fields: selected fields of a binding.
        at: RFC 3339 time before which the source is processed; None at the beginning.
        waiting: number of waiting documents.
        quarantined: number of documents put aside.
        work: work of the lambda, as in `flowctl status -o json`; None before its first document.
    """

    name: str
    source: str
    notes: tuple[str, ...]
    script: Script | None
    resource: str | None
    fields: tuple[str, ...]
    at: str | None
    waiting: int
    quarantined: int
    work: Mapping[str, Any] | None


def _inputs(folder: Folder, overview: Overview, spec: DerivationSpec | MaterializationSpec) -> Iterator[_Input]:
    """Yield the inputs of a task, in the order of the catalog."""
    from derive.planning.plan import present_positions, present_state

    row, store = overview.tasks[spec.name].row, folder.store()
    flows = [flow for flow in flow_graph(overview.catalog).flows if flow.target == spec.name]
    waiting = {wait["transform"]: wait["documents"] for wait in row["waiting for"]}
    work = {done["transform"]: done for done in row["transforms"] if done["documents in"]}
    try:
        positions = present_positions(store, spec, present_state(store, spec))
    except FlowError:  # the state of the task shows the error
        positions = {}
    scripts = [item.script for item in spec.transforms] if isinstance(spec, DerivationSpec) else [None] * len(flows)
    bindings = spec.bindings if isinstance(spec, MaterializationSpec) else [None] * len(flows)
    for flow, item, script, binding in zip(flows, spec.inputs, scripts, bindings, strict=True):
        at = positions.get(item.state_key)
        yield _Input(
            flow.label,
            flow.source,
            flow.notes,
            script,
            None if binding is None else dump_exact(binding.resource).decode(),
            () if binding is None else _fields(binding),
            None if not at or at < 0 else format_rfc3339(at),
            waiting.get(item.name, 0),
            row["quarantine"].get(item.name, 0),
            work.get(item.name),
        )


def _fields(binding: BindingSpec) -> tuple[str, ...]:
    """Return the selected fields of a binding, as the catalog names them."""
    recommended = ("the recommended fields",) if binding.fields.recommended else ()
    without = tuple(f"without {name}" for name in binding.fields.exclude)
    return (*binding.fields.key, *binding.fields.include, *recommended, *without)


def _modules(spec: DerivationSpec | MaterializationSpec) -> Iterator[tuple[str, Script]]:
    """Yield the module of a derivation in Python or TypeScript, or the migrations of its tables, with a title."""
    config = spec.connector_config if isinstance(spec, DerivationSpec) else None
    module = getattr(config, "module", None)
    if isinstance(module, Script):
        yield "Module", module
    for number, migration in enumerate(getattr(config, "migrations", ()), start=1):
        if isinstance(migration, Script):
            yield f"Migration {number}", migration


def _endpoint(catalog: CatalogSpec, spec: MaterializationSpec) -> str:
    """Return the name of a connector, its address or its program; a configuration may have passwords."""
    return next(node.notes[0] for node in flow_graph(catalog).nodes if node.name == spec.name)


def _described(entry: Entry) -> dict[str, Any]:
    """Return an entry of a log with its further fields as one text."""
    known = ("at", "level", "task", "message")
    rest = " ".join(f"{name}={_rounded(value)}" for name, value in entry.items() if name not in known)
    return {**{name: entry.get(name, "") for name in known}, "rest": rest}


def _rounded(value: Any) -> Any:
    """Return a value of a log; a fraction has at most three decimals."""
    return round(value, 3) if isinstance(value, float) else value


def show_state(request: Request) -> Response:
    """Return the tables of a derivation's state, or the first rows of one, as a part of its page."""
    folder: Folder = request.app.state.folder
    name: str = request.path_params["name"]
    table = request.query_params.get("table", "")
    values: dict[str, Any] = {"title": f"State of {name}", "page": "Tasks", "name": name, "table": table, "error": None}
    values |= {"tables": [], "columns": [], "rows": []}
    store = folder.store()
    try:
        spec = catalog_with_shadows(store, folder.catalog(), [name]).find_derivation(name)
        with (
            _STATE_TURN,
            copied_states(store, store.root, name) as copies,
            closing(StateQuery(spec, copies, _STATE_SECONDS, _STATE_MEGABYTES)) as query,
        ):
            values["tables"] = [(one.name, ", ".join(one.columns)) for one in query.tables.values()]
            if table in query.tables:
                quoted = '"' + table.replace('"', '""') + '"'
                rows = list(islice(query.rows(f"SELECT * FROM {quoted} LIMIT ?", (_STATE_ROWS,)), _STATE_ROWS))
                values["columns"] = list(rows[0]) if rows else []
                values["rows"] = [list(map(_cell, row.values())) for row in rows]
    except FlowError as error:
        values["error"] = render_error(error)
    return page(request, "state.html", values)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else dump_exact(value).decode()


def show_quarantine(request: Request) -> Response:
    """Return the page with the documents that were put aside, and were neither retried nor dropped."""
    folder: Folder = request.app.state.folder
    text = request.query_params.get("offset", "")
    offset = int(text) if text.isdecimal() else 0
    entries = list(islice(_open_entries(folder), offset, offset + _ENTRIES + 1))
    values = {
        "title": "Quarantine",
        "page": "Quarantine",
        "entries": entries[:_ENTRIES],
        "offset": offset,
        "next": offset + _ENTRIES if len(entries) > _ENTRIES else None,
        "before": max(0, offset - _ENTRIES) if offset else None,
    }
    return page(request, "quarantine.html", values)


def _open_entries(folder: Folder) -> Iterator[dict[str, Any]]:
    store = folder.store()
    for spec in folder.catalog().derivations.values():
        if spec.quarantines or store.quarantined(spec.name):
            for entry in open_entries(store, spec, Choice()):
                texts = {name: dump_exact(entry.get(name)).decode() for name in ("key", "document")}
                yield {"task": spec.name, **entry, **texts}
