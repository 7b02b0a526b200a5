"""Compute instances in the output of `flowctl status`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from derive.sql.maintenance.recording import Record

_COLUMNS = ["instance", "state", "address", "process", "dataflows", "lag", "memory MiB", "reason"]
_SPARE = ("address", "process", "memory MiB")
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
    rows = [_row(record, instance, present) for instance in record.instances]
    if (output or ("table" if sys.stdout.isatty() else "json")) == "json":
        print_rows(_COLUMNS, rows, "json")
    else:
        counted = [row | {"dataflows": len(row["dataflows"])} for row in rows]
        print_rows(_COLUMNS, counted, "table", spare=_SPARE, wide=wide)
        if dataflows := _furthest([dataflow for row in rows for dataflow in row["dataflows"]]):
            print_rows(_DATAFLOW_COLUMNS, dataflows, "table", spare=_DATAFLOW_SPARE, wide=wide)
    if not record.is_live:
        note(
            f"no SQL server is running: compute instances are shown as {show_process(record.process)} recorded them at"
            f" {format_rfc3339(record.at)}, before it was killed",
            level="warn",
        )


def _row(record: Record, instance: Mapping[str, Any], present: int) -> dict[str, Any]:
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
