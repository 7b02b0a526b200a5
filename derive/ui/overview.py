"""The first page: the data flow of the catalog as a picture, with the state of each task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from derive.catalog.graph import FlowGraph, Node, flow_graph
from derive.cli.console import render_error
from derive.cli.graph_picture import Mark, svg_element
from derive.document.clock import format_rfc3339
from derive.planning.status import instance_row
from derive.plural import counted
from derive.ui.folder import Overview, Task
from derive.ui.rendering import cut, live_overview, page, path_of


def show(request: Request) -> Response:
    """Return the page."""
    overview, version = live_overview(request)
    graph = live_graph(overview)
    record = overview.instances
    instances = [instance_row(record, one, overview.present) for one in record.instances] if record else []
    values: dict[str, Any] = {
        "title": "Catalog",
        "page": "Catalog",
        "version": version,
        "facts": list(_facts(overview)),
        "outdated": overview.outdated and render_error(overview.outdated),
        "picture": svg_element(graph, _marks(overview, graph)) if graph.nodes else "",
        "picture_has_nodes": bool(graph.nodes),
        "tasks": overview.tasks,
        "reasons": reasons,
        "runs": overview.runs,
        "instances": instances,
    }
    return page(request, "catalog.html", values)


def _facts(overview: Overview) -> Iterator[str]:
    ingested = len(overview.catalog.collections) - len(overview.catalog.derivations)
    yield f"{ingested:,} ingested, {counted(len(overview.catalog.derivations), 'derived collection')}"
    yield counted(sum(overview.documents.values()), "document")
    states = [task.row["state"] for task in overview.tasks.values()]
    counts = {state: states.count(state) for state in ("failed", "waiting", "behind", "delayed")}
    yield from (f"{count:,} {state}" for state, count in counts.items() if count)
    if overview.runs:
        yield counted(overview.runs, "run")
    away = [one for one in (overview.instances.instances if overview.instances else ()) if one["process"] is None]
    if away:
        yield f"{counted(len(away), 'instance')} not connected"
    yield f"as of {format_rfc3339(overview.present)[:19].replace('T', ' ')} UTC"


def live_graph(overview: Overview) -> FlowGraph:
    """Return the data flow; the notes of a node are its state, and the notes of a flow include waiting documents."""
    graph = flow_graph(overview.catalog)
    waits = {
        (name, wait["transform"]): wait["documents"]
        for name, task in overview.tasks.items()
        for wait in task.row["waiting for"]
        if wait["documents"]
    }
    flows = (
        replace(flow, notes=(*flow.notes, f"{waits[flow.target, flow.label]:,} waiting"))
        if (flow.target, flow.label) in waits
        else flow
        for flow in graph.flows
    )
    return FlowGraph(tuple(replace(node, notes=_notes(overview, node)) for node in graph.nodes), tuple(flows))


def _notes(overview: Overview, node: Node) -> tuple[str, ...]:
    notes = []
    task = overview.tasks.get(node.name)
    if task is not None:
        row = task.row
        notes.append(row["state"])
        if row["lag"] is not None:
            notes.append(f"lag {row['lag']}")
        if row["rate"] is not None:
            notes.append(f"{row['rate']:,}/s")
        if row["waiting"]:
            notes.append(f"{row['waiting']:,} waiting")
    if node.name in overview.documents:
        count = overview.documents[node.name]
        notes.append(counted(count, "document"))
    if task is not None and task.row["quarantined"]:
        notes.append(f"{task.row['quarantined']:,} quarantined")
    if task is not None and task.error is not None:
        notes.append(cut(task.error.message, 200))
    return tuple(notes)


def _marks(overview: Overview, graph: FlowGraph) -> dict[str, Mark]:
    states = {name: task.row["state"].replace(" ", "-") for name, task in overview.tasks.items()}
    return {
        node.name: Mark(f"/{'tasks' if node.name in states else 'collections'}/{path_of(node.name)}", kind)
        for node in graph.nodes
        for kind in [states.get(node.name, "ingested")]
    }


def reasons(task: Task) -> list[str]:
    """Return the reasons why a task waits or has stopped, and notes about it, as `flowctl status` prints them."""
    row = task.row
    texts = [task.error.message] if task.error is not None else []
    if task.error is not None and task.error.hint:
        texts.append(f"= {task.error.hint}")
    for wait in row["waiting for"]:
        due = f", due {wait['due'][:19].replace('T', ' ')}" if row["state"] == "delayed" else ""
        texts.append(f"{wait['transform']}: {wait['documents']:,} waiting{due}")
    texts += [f"{edit['message']} ({edit['hint']})" for edit in row["edits"]]
    if edit_wait := row["edit waits for"]:
        tasks = ", ".join(edit_wait["tasks"])
        texts.append(f"an edit has waited since {edit_wait['since']} for the end of transactions of {tasks}")
    texts += [
        f"refill of '{refill['binding']}' is at {refill['at']}, until {refill['until']}" for refill in row["refills"]
    ]
    texts += [
        f"transform '{name}' has put {counted(count, 'document')} aside" for name, count in row["quarantine"].items()
    ]
    return texts
