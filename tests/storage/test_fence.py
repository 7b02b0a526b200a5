"""Of processes that write for clients of SQL the latest one counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from derive.errors import FencedError
from derive.storage.store import Store
from derive.storage.table_types import TableColumn

pytestmark = pytest.mark.both_databases


def test_superseded_store_commits_nothing(tmp_path: Path) -> None:
    old, new = Store(tmp_path / "data", durable=False), Store(tmp_path / "data", durable=False)
    table = old.tables.create("sql/public/t", [TableColumn("a", "bigint")])
    assert old.fence.begin() == 1
    old.task_capabilities.acquire_dataflow_inputs({}, {7: ([table.name], 100), 8: ([table.name], 100)})

    assert new.fence.begin() == 2
    new.task_capabilities.acquire_dataflow_inputs({}, {8: ([table.name], 200)})
    new.task_capabilities.release_index(7)
    with pytest.raises(FencedError, match="another flowctl has begun to serve SQL"):
        old.task_capabilities.acquire_dataflow_inputs({}, {7: ([table.name], 150), 8: ([table.name], 150)})
    with pytest.raises(FencedError):
        old.task_capabilities.release_index(8)
    with pytest.raises(FencedError):
        old.seal_now([table.name])
    with pytest.raises(FencedError):
        old.fence.begin()

    assert new.task_capabilities.dataflows("index") == {8: 200}
    assert (old.fence.is_superseded(), new.fence.is_superseded()) == (True, False)
    old.close()
    new.close()


def test_unstarted_store_is_not_superseded(tmp_path: Path) -> None:
    other, server = Store(tmp_path / "data", durable=False), Store(tmp_path / "data", durable=False)
    assert server.fence.begin() == 1
    assert not other.fence.is_superseded()
    other.seal_now([])
    server.seal_now([])
    other.close()
    server.close()


def test_an_epoch_is_above_all_earlier_ones(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        store = Store(tmp_path / "data", durable=False)
        epochs.append(store.fence.begin())
        store.close()
    assert epochs == [1, 2, 3]


def test_fenced_server_releases_its_capabilities(tmp_path: Path) -> None:
    """Its capability ends with its process; closing what reads raises no error, so that the rest is closed too."""
    old, new = Store(tmp_path / "data", durable=False), Store(tmp_path / "data", durable=False)
    table = old.tables.create("sql/public/t", [TableColumn("v", "bigint")])
    old.fence.begin()
    kept = old.capabilities.keep(table.name)
    new.fence.begin()
    kept.close()
    old.close()
    new.close()
