"""`flowctl status`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import catalog_options, open_store, optional_catalog, output_option, stored_folder, wide_option
from derive.plural import counted

if TYPE_CHECKING:
    from derive.errors import FlowError
    from derive.sql.maintenance.recording import Record
    from derive.storage.metadata.swap import BindingShadow, Shadow

_INSTANCE_COLUMNS = ["instance", "state", "address", "process", "dataflows", "lag", "memory MiB", "reason"]
_INSTANCE_SPARE = ("address", "process", "memory MiB")
_DATAFLOW_COLUMNS = ["name", "kind", "lag", "upper", "error"]
_DATAFLOW_SPARE = ("upper", "kind")


def print_instances(record: Record | None, present: int, output: str | None, *, wide: bool) -> None:
    """Print the state of compute instances, if an SQL server runs or was killed.

    Args:
        record: the record of the instances; None for none.
        present: present time in the data folder, in microseconds.
        output: as for `print_rows`.
        wide: as for `print_rows`.
    """
    from derive.cli.console import note, print_rows
    from derive.document.clock import format_rfc3339
    from derive.planning.status import instance_row
    from derive.storage.metadata.process import show_process

    if record is None:
        return
    rows = [instance_row(record, instance, present) for instance in record.instances]
    if (output or ("table" if sys.stdout.isatty() else "json")) == "json":
        print_rows(_INSTANCE_COLUMNS, rows, "json")
    else:
        counted = [row | {"dataflows": len(row["dataflows"])} for row in rows]
        print_rows(_INSTANCE_COLUMNS, counted, "table", spare=_INSTANCE_SPARE, wide=wide)
        if dataflows := _furthest([dataflow for row in rows for dataflow in row["dataflows"]]):
            print_rows(_DATAFLOW_COLUMNS, dataflows, "table", spare=_DATAFLOW_SPARE, wide=wide)
    if not record.is_live:
        note(
            f"no SQL server is running: compute instances are shown as {show_process(record.process)} recorded them at"
            f" {format_rfc3339(record.at)}, before it was killed",
            level="warn",
        )


def _furthest(dataflows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each dataflow once, from the instance with the highest upper."""
    furthest: dict[str, dict[str, Any]] = {}
    for dataflow in sorted(dataflows, key=lambda dataflow: (dataflow["name"], dataflow["upper"] or "")):
        furthest[dataflow["name"]] = dataflow
    return list(furthest.values())


_COLUMNS = [
    "task",
    "state",
    "shards",
    "transactions",
    "documents in",
    "documents out",
    "rate",
    "waiting",
    "lag",
    "upper",
]
_SPARE = ("shards", "transactions", "upper", "rate", "documents in", "documents out", "lag")

_WORTH_TELLING = 1_000_000
"""Difference to the wall clock, in microseconds, from which `status` prints a note."""


@click.command()
@catalog_options
@output_option
@wide_option
def command(source: Path, data: Path | None, output: str | None, *, wide: bool) -> None:
    """Show each task: its progress, the documents that wait for it, and its error if it stopped.

    \b
    state     meaning
    idle      no documents wait
    delayed   documents wait for their read delay
    behind    documents wait for `flowctl run`
    waiting   an edit waits to be accepted by `flowctl run --accept`
    failed    an error stopped the task, or will stop it at the next run
    disabled  the catalog disables the task

    `rate` is the number of documents read per second in the last transactions. `lag` is the distance of `upper` from
    the present: everything before `upper` is derived, or stored by a materialization.

    JSON has more: `waiting for` (per transform: number of waiting documents, and the time when the first is due),
    `transforms` (per lambda: documents that it read and published, and its time; the time of documents that are
    processed together with those of another transform is divided evenly),
    `unaccepted` (edits to accept), `edit waits for` (transactions that must end before `flowctl run --watch` applies an
    edit to the task, and since when), `quarantine` (number of documents that each transform has put aside), and
    `advice` (more shards for a derivation that is minutes behind). Edits made after documents were published, and the
    advice, are listed below the table.
    While a shadow is derived, `NAME@N` is the shadow of task NAME.

    Compute instances of `flowctl sql serve` follow, then views and indexes as of the instance with the highest upper.
    After a server was killed, its last record is shown. In JSON, each instance lists its own dataflows.

    \b
    Examples:
      flowctl status --wide
      flowctl status -o json | jq 'select(.state == "failed")'
    """
    from derive.cli.console import note, print_error, print_rows
    from derive.document.clock import format_duration, format_rfc3339
    from derive.planning.status import running_catalog_of, task_row, whole_seconds
    from derive.sql.maintenance.recording import read_record

    catalog = optional_catalog(source, data)
    folder = stored_folder(source, data)
    store = open_store(folder, reading=True)
    try:
        shadows, bindings = store.shadows.members(), store.shadows.bindings()
        uppers = {name: store.upper(name) for shadow in shadows for name in (shadow.task, shadow.name)}
        positions = {one.task: task.positions for one in bindings if (task := store.task(one.task))}
        catalog, outdated = running_catalog_of(store, shadows, bindings, catalog)
        rows = [task_row(store, spec) for spec in (catalog.tasks.values() if catalog else ())]
        ahead, present = store.timeline.ahead(), store.timeline.present()
        record = read_record(folder, store.serving)
    finally:
        store.close()
    if catalog is not None:
        columns = [*_COLUMNS, "quarantined"] if any(row["quarantined"] for row, _ in rows) else _COLUMNS
        print_rows(columns, [row for row, _ in rows], output, spare=_SPARE, wide=wide)
    print_instances(record, present, output, wide=wide)
    if ahead >= _WORTH_TELLING:
        note(
            f"the data folder's time is {format_rfc3339(present)}, {format_duration(whole_seconds(ahead))} ahead of"
            " this machine's clock, which was set back; the data folder's time continues from there",
            level="warn",
        )
    _report_shadows(shadows, uppers)
    _report_binding_shadows(bindings, positions)
    if outdated is not None:
        print_error(outdated)
    elif any(shadow.is_held for shadow in shadows):
        note("the shadows replace the live version after: flowctl swap")
    elif any(shadow.is_held for shadow in bindings):
        note("the rows of the second tables replace the live rows after: flowctl swap")
    _report_tasks(rows)


def _report_tasks(rows: Sequence[tuple[dict[str, Any], FlowError | None]]) -> None:
    """Print the waits, refills, edits and errors of tasks."""
    from derive.cli.console import note, print_error
    from derive.cli.preview import with_preview

    for row, error in rows:
        if wait := row["edit waits for"]:
            own = wait["tasks"] == [row["task"]]
            what = "its own transaction" if own else f"transactions of {', '.join(wait['tasks'])}"
            note(f"{row['task']}: an edit has waited since {wait['since']} for the end of {what}", task=row["task"])
        for refill in row["refills"]:
            what = f"refill of '{refill['binding']}': rows are written to a second table until {refill['until']}"
            note(
                f"{row['task']}: {what}, and then replace the present rows; the refill is at {refill['at']}",
                task=row["task"],
            )
        _note_quarantine(row["task"], row["quarantine"])
        for edit in row["edits"]:
            note(f"{row['task']}: {edit['message']}, {_since(edit['at'])} ({edit['hint']})", task=row["task"])
        if error and row["state"] in ("failed", "waiting"):
            print_error(with_preview(row["task"], error))
        if row["advice"]:
            note(row["advice"], task=row["task"])


def _report_shadows(shadows: Sequence[Shadow], uppers: Mapping[str, int]) -> None:
    """Print how far each shadow is.

    Args:
        shadows: the shadows.
        uppers: `upper` of each shadow and of each live collection.
    """
    from derive.cli.console import note
    from derive.document.clock import format_rfc3339
    from derive.time import BEGINNING

    for shadow in shadows:
        own, live = uppers[shadow.name], uppers[shadow.task]
        at = f"is at {format_rfc3339(own)}" if own > BEGINNING else "has derived nothing yet"
        beside = f", and '{shadow.task}' at {format_rfc3339(live)}" if live > BEGINNING else ""
        note(f"{shadow.name}: the shadow of '{shadow.task}' {at}{beside}", task=shadow.name)


def _report_binding_shadows(shadows: Sequence[BindingShadow], positions: Mapping[str, Mapping[str, int]]) -> None:
    """Print how far each shadow of a binding is, and the error that stopped it.

    Args:
        shadows: the shadows.
        positions: for each materialization, the adjusted timestamp that each binding (by state key) has reached.
    """
    from derive.cli.console import note, print_error
    from derive.document.clock import format_rfc3339

    for shadow in shadows:
        reached = positions.get(shadow.task, {})
        for key, live in shadow.keys.items():
            at = f"is filled up to {format_rfc3339(reached[key])}" if reached.get(key) else "is empty yet"
            beside = f", and the live rows are at {format_rfc3339(reached[live])}" if reached.get(live) else ""
            note(f"{shadow.task}: the second table of '{live}' {at}{beside}", task=shadow.task)
        if shadow.error:
            print_error(shadow.error)


def _note_quarantine(task: str, quarantine: Mapping[str, int]) -> None:
    """Print a note for each transform of a task that has put documents aside."""
    from derive.cli.console import note

    for transform, count in quarantine.items():
        what = f"transform '{transform}' has put {counted(count, 'document')} aside"
        note(f"{task}: {what} (flowctl quarantine list --task {task})", task=task)


def _since(at: str | None) -> str:
    return "from the next run of the task on" if at is None else f"since {at}"
