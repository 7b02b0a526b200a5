"""Histories of crash_script.py on a disk that forgets what was not synced, for test_power_loss.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crash_script import do_history
from power_loss import Recorder

from derive.contents.reads import ReadOptions, read_rows
from derive.protocol.specs import CatalogSpec
from derive.storage.store import Store


def do_under_power(catalog: CatalogSpec, order: dict[str, Any]) -> None:
    """Do a history from the step `begin` on; the power goes at the failpoint, or at the sync `lost_at`, of the order."""
    data = Path(order["data"])
    recorder = Recorder(data.parent, Path(order["log"]), order.get("lost_at", 0))
    recorder.install()

    def done(store: Store, number: int) -> None:
        syncs = recorder.syncs
        recorder.note((number, syncs, rows_of(catalog, store) if order.get("tell") else None))
        recorder.syncs = syncs  # to look adds some

    do_history(catalog, data, history=order["history"], begin=order["begin"], durable=True, done=done)


def rows_of(catalog: CatalogSpec, store: Store) -> dict[str, list[Any]]:
    """Every row of every collection there is."""
    return {
        name: [row for rows in read_rows(store, spec, ReadOptions()) for row in rows.tuples()]
        for name, spec in catalog.collections.items()
        if store.collection(name)
    }
