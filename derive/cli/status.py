"""`flowctl status`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import catalog_options, open_store, optional_catalog, output_option, stored_folder, wide_option

if TYPE_CHECKING:
    from derive.engine.edits import Unaccepted
    from derive.engine.inputs import PendingDocuments
    from derive.errors import FlowError, UsageError
    from derive.protocol.specs import CatalogSpec, DerivationSpec, InputSpec, MaterializationSpec
    from derive.sql.maintenance.recording import Record
    from derive.storage.metadata.descriptions import Edit, TaskState
    from derive.storage.metadata.swap import BindingShadow, Shadow
    from derive.storage.roles import Maintainable, View
    from derive.time.positions import Place

_INSTANCE_COLUMNS = ["instance", "state", "address", "process", "dataflows", "lag", "memory MiB", "reason"]
_INSTANCE_SPARE = ("address", "process", "memory MiB")
_DATAFLOW_COLUMNS = ["name", "kind", "lag", "upper", "error"]
_DATAFLOW_SPARE = ("upper", "kind")


def print_instances(folder: Path, present: int, output: str | None, *, wide: bool) -> None:
    """Print the state of compute instances, if an SQL server runs or was killed.

    Args:
        folder: the data folder.
        present: present time in the data folder, in microseconds.
        output: as for `print_rows`.
        wide: as for `print_rows`.
    """
    from derive.cli.console import note, print_rows
    from derive.document.clock import format_rfc3339
    from derive.sql.maintenance.recording import read_record
    from derive.storage.metadata.process import show_process

    record = read_record(folder)
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


def instance_row(record: Record, instance: Mapping[str, Any], present: int) -> dict[str, Any]:
    """Return the row of a compute instance, as `flowctl status -o json` prints it."""
    from derive.document.clock import format_duration, format_rfc3339

    def lag_of(upper: int) -> str:
        return format_duration(max(0, present - upper) // 1_000_000 * 1_000_000)

    uppers = [dataflow["upper"] for dataflow in instance["dataflows"] if dataflow["upper"] is not None]
    connected = "connecting" if instance["process"] is None else "connected"
    memory = instance["memory"]
    return {
        "instance": instance["name"],
        "state": connected if record.is_live else "unknown",
        "address": instance["address"] or None,
        "process": instance["process"],
        "lag": lag_of(min(uppers)) if uppers else None,
        "memory MiB": None if memory is None else memory >> 20,
        "reason": instance["reason"],
        "kept": instance["kept"],
        "rebuilt": instance["rebuilt"],
        "dropped": instance["dropped"],
        "dataflows": [
            {
                "name": dataflow["name"],
                "kind": dataflow["kind"],
                "lag": None if dataflow["upper"] is None else lag_of(dataflow["upper"]),
                "upper": None if dataflow["upper"] is None else format_rfc3339(dataflow["upper"]),
                "error": dataflow["error"],
            }
            for dataflow in instance["dataflows"]
        ],
        "at": format_rfc3339(record.at),
    }


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
    failed    an error stopped the task
    disabled  the catalog disables the task

    `rate` is the number of documents read per second in the last transactions. `lag` is the distance of `upper` from
    the present: everything before `upper` is derived, or stored by a materialization.

    JSON has more: `waiting for` (per transform: number of waiting documents, and the time when the first is due),
    `unaccepted` (edits to accept), `edit waits for` (transactions that must end before `flowctl run --watch` applies an
    edit to the task, and since when), and `quarantine` (number of documents that each transform has put aside). Edits
    made after documents were published are listed below the table.
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
    finally:
        store.close()
    if catalog is not None:
        columns = [*_COLUMNS, "quarantined"] if any(row["quarantined"] for row, _ in rows) else _COLUMNS
        print_rows(columns, [row for row, _ in rows], output, spare=_SPARE, wide=wide)
    print_instances(folder, present, output, wide=wide)
    if ahead >= _WORTH_TELLING:
        note(
            f"the data folder's time is {format_rfc3339(present)}, {format_duration(_whole_seconds(ahead))} ahead of"
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


def running_catalog_of(
    store: View, shadows: Sequence[Shadow], bindings: Sequence[BindingShadow], catalog: CatalogSpec | None
) -> tuple[CatalogSpec | None, UsageError | None]:
    """Return the catalog that a run with the shadows runs; or the same catalog, and the error of outdated shadows."""
    from derive.engine.shadow import running_catalog
    from derive.errors import UsageError

    try:
        running = catalog and running_catalog(store, shadows, catalog)
        if running and bindings:
            from derive.engine.shadow import with_shadows  # imports gRPC

            running = with_shadows(running, bindings)
        return running, None
    except UsageError as error:
        return catalog, error


def _report_tasks(rows: Sequence[tuple[dict[str, Any], FlowError | None]]) -> None:
    """Print the waits, refills, edits and errors of tasks."""
    from derive.cli.console import note, print_error

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
            print_error(error)


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
        what = f"transform '{transform}' has put {count:,} document{'' if count == 1 else 's'} aside"
        note(f"{task}: {what} (flowctl quarantine list --task {task})", task=task)


def _since(at: str | None) -> str:
    return "from the next run of the task on" if at is None else f"since {at}"


def task_row(
    store: Maintainable, spec: DerivationSpec | MaterializationSpec
) -> tuple[dict[str, Any], FlowError | None]:
    """Return the row of a task, and the error that stopped it or will stop it."""
    row, error = _described(store, spec)
    return row | _describe_quarantine(store, spec), error


def _described(
    store: Maintainable, spec: DerivationSpec | MaterializationSpec
) -> tuple[dict[str, Any], FlowError | None]:
    """Return the row of a task without its quarantine, and the error that stopped it or will stop it."""
    import orjson

    from derive.document.clock import format_duration, format_rfc3339
    from derive.engine.edits import refusal_of, reset_command
    from derive.engine.inputs import find_pending
    from derive.errors import FlowError, SourceReplacedError, StorageError
    from derive.planning.plan import find_edits, find_unaccepted, measured_rate, present_positions, present_state

    task, reset = present_state(store, spec), reset_command(store, spec.name)
    error = FlowError.from_json(orjson.loads(task.error)) if task and task.error else None
    waiting: list[PendingDocuments] = []
    unreadable = None
    unaccepted: tuple[Unaccepted, ...] = ()
    positions: Mapping[str, int] = {}
    try:
        positions = present_positions(store, spec, task)
        waiting = find_pending(store, spec, positions, _places(spec.inputs, positions, task))
        unaccepted = find_unaccepted(store, spec, task)
        error = refusal_of(spec.name, unaccepted, reset) or error
    except (StorageError, SourceReplacedError) as exc:
        unreadable = exc
        error = error or exc
    state = _state(store, waiting, has_run=task is not None, failed=error is not None, disabled=spec.disabled)
    upper = _upper(store, spec, positions)
    return {
        "task": spec.name,
        "state": "waiting" if unaccepted and not spec.disabled else state,
        **_counts(task),
        "rate": measured_rate(store.root, spec.name),
        "waiting": None if unreadable else sum(wait.documents for wait in waiting),
        "lag": None if upper is None else format_duration(_whole_seconds(store.timeline.present() - upper)),
        "upper": None if upper is None else format_rfc3339(upper),
        "waiting for": list(map(_describe_wait, waiting)),
        "edit waits for": _describe_edit_wait(store, spec.name),
        "unaccepted": [{"message": edit.message, "hint": edit.hint} for edit in unaccepted],
        "edits": list(map(_describe_edit, find_edits(spec, task, reset, unaccepted))),
        "refills": _describe_refills(store, spec, positions),
        "error": error.message if error else None,
    }, error


def _describe_quarantine(store: View, spec: DerivationSpec | MaterializationSpec) -> dict[str, Any]:
    """Return the number of documents that wait in a quarantine, in total and by transform."""
    from derive.protocol.specs import DerivationSpec

    counts = store.quarantined(spec.name)
    transforms = spec.transforms if isinstance(spec, DerivationSpec) else ()
    waiting = {item.name: sum(counts.get(key, 0) for key in item.state_keys) for item in transforms}
    return {
        "quarantined": sum(waiting.values()),
        "quarantine": {name: count for name, count in waiting.items() if count},
    }


def _places(inputs: Sequence[InputSpec], positions: Mapping[str, int], task: TaskState | None) -> dict[str, Place]:
    """Return the relation that each started input of a task has reached."""
    begun = [item.state_key for item in inputs if item.state_key in positions]
    return {key: task.places[key].arrived(positions[key]) for key in begun if key in task.places} if task else {}


def _counts(task: TaskState | None) -> dict[str, int | None]:
    """Return the counts of a task."""
    if task is None:
        return {"shards": None, "transactions": 0, "documents in": 0, "documents out": 0}
    return {
        "shards": task.shards,
        "transactions": task.transactions,
        "documents in": task.documents_in,
        "documents out": task.documents_out,
    }


def _upper(store: View, spec: DerivationSpec | MaterializationSpec, positions: Mapping[str, int]) -> int | None:
    """Return the time before which a derivation is final, or a materialization is stored; None at the beginning."""
    from derive.protocol.specs import DerivationSpec
    from derive.time import BEGINNING

    if isinstance(spec, DerivationSpec):
        known = store.collection(spec.name)
        upper = known.upper if known else BEGINNING
    else:
        upper = min((positions.get(item.state_key, BEGINNING) for item in spec.live.inputs), default=BEGINNING)
    return upper if upper > BEGINNING else None


def _describe_wait(wait: PendingDocuments) -> dict[str, Any]:
    from derive.document.clock import format_duration, format_rfc3339

    return {
        "transform": wait.transform,
        "documents": wait.documents,
        "read delay": format_duration(wait.delay),
        "due": format_rfc3339(wait.due),
    }


def _describe_edit(edit: Edit) -> dict[str, Any]:
    from derive.document.clock import format_rfc3339

    return {"message": edit.message, "hint": edit.hint, "at": None if edit.at is None else format_rfc3339(edit.at)}


def _describe_edit_wait(store: View, task: str) -> dict[str, Any] | None:
    from derive.engine.edits import find_wait

    wait = find_wait(store.root, task)
    return None if wait is None else {"tasks": list(wait.tasks), "since": wait.since}


def _describe_refills(
    store: View, spec: DerivationSpec | MaterializationSpec, positions: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Describe the bindings that are being refilled."""
    from derive.document.clock import format_rfc3339
    from derive.materialize.restarts import read_refills
    from derive.time import BEGINNING

    return [
        {
            "binding": key,
            "at": format_rfc3339(max(positions.get(key, BEGINNING), BEGINNING)),
            "until": format_rfc3339(until),
        }
        for key, until in sorted(read_refills(store.root, spec.name).items())
    ]


def _whole_seconds(micros: int) -> int:
    return max(0, micros) // 1_000_000 * 1_000_000


def _state(store: View, waiting: list[PendingDocuments], *, has_run: bool, failed: bool, disabled: bool) -> str:
    if disabled:
        return "disabled"
    if failed:
        return "failed"
    if not has_run:
        return "never run"
    if not waiting:
        return "idle"
    return "behind" if any(wait.due <= store.timeline.present() for wait in waiting) else "delayed"
