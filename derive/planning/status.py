"""The state of tasks and compute instances, as rows for `flowctl status`, `flowctl ui` and Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from derive.document.clock import format_duration, format_rfc3339
from derive.engine.edits import Unaccepted, find_wait, refusal_of, reset_command
from derive.engine.inputs import PendingDocuments, estimate_waiting, find_pending, look
from derive.engine.shadow import running_catalog, with_shadows
from derive.engine.shard_advice import advise, can_be_split
from derive.errors import FlowError, SourceReplacedError, StorageError, UsageError
from derive.materialize.restarts import read_refills
from derive.planning.plan import (
    find_edits,
    find_refusal,
    find_unaccepted,
    measured_rate,
    present_positions,
    present_state,
)
from derive.protocol.specs import CatalogSpec, DerivationSpec, InputSpec, MaterializationSpec
from derive.sql.maintenance.recording import Record
from derive.storage.metadata.descriptions import Edit, TaskState, Work
from derive.storage.metadata.swap import BindingShadow, Shadow
from derive.storage.roles import Maintainable, View
from derive.time import BEGINNING
from derive.time.extent import Limits
from derive.time.positions import Place


def running_catalog_of(
    store: View, shadows: Sequence[Shadow], bindings: Sequence[BindingShadow], catalog: CatalogSpec | None
) -> tuple[CatalogSpec | None, UsageError | None]:
    """Return the catalog that a run with the shadows runs; or the same catalog, and the error of outdated shadows."""
    try:
        running = catalog and running_catalog(store, shadows, catalog)
        if running and bindings:
            running = with_shadows(running, bindings)
        return running, None
    except UsageError as error:
        return catalog, error


def task_row(
    store: Maintainable, spec: DerivationSpec | MaterializationSpec
) -> tuple[dict[str, Any], FlowError | None]:
    """Return the row of a task, and the error that stopped it or will stop it."""
    row, error = _described(store, spec)
    return row | {"transforms": _describe_work(store, spec)} | _describe_quarantine(store, spec), error


def _describe_work(store: View, spec: DerivationSpec | MaterializationSpec) -> list[dict[str, Any]]:
    """Return the work of each lambda of a derivation, in the order of the catalog; nothing for a materialization."""
    if not isinstance(spec, DerivationSpec):
        return []
    work = store.work(spec.name)
    return [
        {
            "transform": transform.name,
            "source": transform.input.source,
            "documents in": done.documents,
            "published": done.published,
            "seconds": done.micros / 1e6,
            "microseconds per document": round(done.micros / done.documents, 3) if done.documents else None,
        }
        for transform in spec.transforms
        for done in [work.get(transform.input.state_key, Work())]
    ]


def _described(
    store: Maintainable, spec: DerivationSpec | MaterializationSpec
) -> tuple[dict[str, Any], FlowError | None]:
    """Return the row of a task without its quarantine, and the error that stopped it or will stop it."""
    task, reset = present_state(store, spec), reset_command(store, spec.name)
    refused = None if spec.disabled else find_refusal(store, spec, task)
    error = FlowError.from_json(orjson.loads(task.error)) if task and task.error else None
    waiting: list[PendingDocuments] = []
    unreadable = advice = None
    rate = measured_rate(store.root, spec.name)
    unaccepted: tuple[Unaccepted, ...] = ()
    positions: Mapping[str, int] = {}
    try:
        positions = present_positions(store, spec, task)
        waiting = find_pending(store, spec, positions, _places(spec.inputs, positions, task))
        advice = _advice(store, spec, task, rate) if waiting else None
        unaccepted = find_unaccepted(store, spec, task)
        error = refused or refusal_of(spec.name, unaccepted, reset) or error
    except (StorageError, SourceReplacedError) as exc:
        unreadable = exc
        error = refused or error or exc
    state = _state(store, waiting, has_run=task is not None, failed=error is not None, disabled=spec.disabled)
    upper = _upper(store, spec, positions)
    return {
        "task": spec.name,
        "state": "waiting" if unaccepted and not refused and not spec.disabled else state,
        **_counts(task),
        "rate": rate,
        "waiting": None if unreadable else sum(wait.documents for wait in waiting),
        "lag": None if upper is None else format_duration(whole_seconds(store.timeline.present() - upper)),
        "upper": None if upper is None else format_rfc3339(upper),
        "waiting for": list(map(_describe_wait, waiting)),
        "edit waits for": _describe_edit_wait(store, spec.name),
        "unaccepted": [{"message": edit.message, "hint": edit.hint} for edit in unaccepted],
        "edits": list(map(_describe_edit, find_edits(spec, task, reset, unaccepted))),
        "refills": _describe_refills(store, spec, positions),
        "advice": None if error else advice,
        "error": error.message if error else None,
    }, error


def _advice(
    store: Maintainable, spec: DerivationSpec | MaterializationSpec, task: TaskState | None, rate: float | None
) -> str | None:
    """Return the advice to split a task that is far behind; None for other tasks."""
    cores = os.cpu_count() or 1
    if task is None or not can_be_split(spec, task.shards, cores):
        return None
    inputs = look(store, spec, task.positions, limits=Limits())
    due = estimate_waiting(inputs, spec, task.positions, store.timeline.present()).due
    return advise(spec.name, task.shards, cores, due, rate)


def _describe_quarantine(store: View, spec: DerivationSpec | MaterializationSpec) -> dict[str, Any]:
    """Return the number of documents that wait in a quarantine, in total and by transform."""
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
    if isinstance(spec, DerivationSpec):
        known = store.collection(spec.name)
        upper = known.upper if known else BEGINNING
    else:
        upper = min((positions.get(item.state_key, BEGINNING) for item in spec.live.inputs), default=BEGINNING)
    return upper if upper > BEGINNING else None


def _describe_wait(wait: PendingDocuments) -> dict[str, Any]:
    return {
        "transform": wait.transform,
        "documents": wait.documents,
        "read delay": format_duration(wait.delay),
        "due": format_rfc3339(wait.due),
    }


def _describe_edit(edit: Edit) -> dict[str, Any]:
    return {"message": edit.message, "hint": edit.hint, "at": None if edit.at is None else format_rfc3339(edit.at)}


def _describe_edit_wait(store: View, task: str) -> dict[str, Any] | None:
    wait = find_wait(store.root, task)
    return None if wait is None else {"tasks": list(wait.tasks), "since": wait.since}


def _describe_refills(
    store: View, spec: DerivationSpec | MaterializationSpec, positions: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Describe the bindings that are being refilled."""
    return [
        {
            "binding": key,
            "at": format_rfc3339(max(positions.get(key, BEGINNING), BEGINNING)),
            "until": format_rfc3339(until),
        }
        for key, until in sorted(read_refills(store, spec.name).items())
    ]


def whole_seconds(micros: int) -> int:
    """Return a duration in microseconds without its fraction of a second; 0 for a negative duration."""
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


def instance_row(record: Record, instance: Mapping[str, Any], present: int) -> dict[str, Any]:
    """Return the row of a compute instance, as `flowctl status -o json` prints it."""

    def lag_of(upper: int) -> str:
        return format_duration(whole_seconds(present - upper))

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
