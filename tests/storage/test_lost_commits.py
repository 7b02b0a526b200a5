"""A SQL server that loses its metadata database during a commit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest
from patience import PATIENCE_SECONDS
from postgres_proxy import Proxy
from postgres_server import server
from sql_world import SqlWorld

from derive.errors import FlowError, StorageError
from derive.metrics.sql_server import SqlMetrics
from derive.storage.metadata.place import VARIABLE, place_of
from derive.storage.metadata.shared_opening import settle_place


async def test_server_with_a_commit_of_unknown_outcome_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is not ready from then on and ends with a reason; the next server has the row or has it not."""
    proxy = Proxy(server().port)
    monkeypatch.setenv(VARIABLE, server().metadata_url.replace(f":{server().port}/", f":{proxy.port}/"))
    settle_place(tmp_path / "data", place_of(os.environ[VARIABLE]), creates=True)
    world = SqlWorld(tmp_path)
    async with world.served() as (coordinator, client):
        await client("CREATE TABLE t (a int)")
        metadata: Any = coordinator.store.metadata
        metadata._patience = 200
        proxy.close()
        proxy.fault = "answer"
        with pytest.raises(FlowError, match="outcome is unknown"):
            await client("INSERT INTO t VALUES (1)")

        await asyncio.wait_for(coordinator.stopped.wait(), PATIENCE_SECONDS)
        readiness = SqlMetrics(coordinator, cast("Any", None)).readiness()
        assert not readiness.is_ready
        assert "outcome is unknown" in readiness.reason
        with pytest.raises(StorageError, match="outcome is unknown") as caught:
            coordinator.store.fence.check()
        assert caught.value.hint == "start it again: it finds the outcome"
