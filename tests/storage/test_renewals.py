"""Leases of a process are renewed together, for as long as somebody needs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from derive.storage.capability.capabilities import Renewals
from derive.storage.metadata.database import Metadata
from derive.storage.store import Store
from derive.storage.table import TableColumn

_PATIENCE_SECONDS = 60.0


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[list[str]]:
    with closing(Store(tmp_path / "data", durable=False)) as store:
        table = store.tables.create("t", (TableColumn("a", "bigint"),))
        yield [store.capabilities.acquire_read(table.id).id for _ in range(20)]


@pytest.fixture
def metadata(tmp_path: Path, leases: list[str]) -> Iterator[Metadata]:
    with closing(Metadata(tmp_path / "data" / "metadata.db")) as metadata:
        yield metadata


def age(metadata: Metadata) -> None:
    with metadata.transaction() as db:
        db.execute("UPDATE capability SET expires = 1")


def old(metadata: Metadata) -> set[str]:
    with metadata.snapshot() as db:
        return {str(row[0]) for row in db.execute("SELECT id FROM capability WHERE expires = 1").fetchall()}


def wait_until_all_are_renewed(metadata: Metadata) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while old(metadata):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_single_thread_renews_all_capabilities(metadata: Metadata, leases: list[str]) -> None:
    renewals, before = Renewals(metadata.path, 0.01), threading.active_count()
    with ExitStack() as stack:
        for lease in leases:
            stack.enter_context(renewals.renewed(lease))
        assert threading.active_count() == before + 1
        age(metadata)
        wait_until_all_are_renewed(metadata)
    assert threading.active_count() == before


def test_unneeded_capability_is_not_renewed(metadata: Metadata, leases: list[str]) -> None:
    renewals = Renewals(metadata.path, 0.01)
    with renewals.renewed(leases[0]):
        with renewals.renewed(leases[1]):
            pass
        age(metadata)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while leases[0] in old(metadata):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert leases[1] in old(metadata)


def test_capabilities_are_renewed_again_after_a_while_without_any(metadata: Metadata, leases: list[str]) -> None:
    renewals = Renewals(metadata.path, 0.01)
    with renewals.renewed(leases[0]):
        pass
    with ExitStack() as stack:
        for lease in leases:
            stack.enter_context(renewals.renewed(lease))
        age(metadata)
        wait_until_all_are_renewed(metadata)
