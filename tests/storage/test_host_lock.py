"""A data folder is in use on one machine at a time, and by any number of processes there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import World
from patience import PATIENCE_SECONDS
from typing_extensions import override

from derive.errors import FencedError, StorageError
from derive.materialize.stages import AnyPlan
from derive.protocol.specs import CatalogSpec
from derive.storage.capability.renewals import Renewals
from derive.storage.metadata.opening import BEAT_SECONDS, SILENT_SECONDS, Host, HostLock, this_host
from derive.storage.store import Store
from derive.storage.table_types import TableColumn

ALPHA, BETA = Host("alpha", "1"), Host("beta", "2")


def use(folder: Path, host: Host, *, reading: bool = False) -> Store:
    return Store(folder, durable=False, host=host, reading=reading)


def say_nothing(folder: Path, seconds: float) -> None:
    """Make the last sign of life of whoever uses a folder older."""
    then = (folder / "host.lock").stat().st_mtime - seconds
    os.utime(folder / "host.lock", (then, then))


def test_second_machine_is_refused_until_the_first_releases(tmp_path: Path) -> None:
    first = use(tmp_path, ALPHA)
    since = json.loads((tmp_path / "host.lock").read_bytes())["since"]

    for reading in (False, True):
        with pytest.raises(StorageError) as caught:
            use(tmp_path, BETA, reading=reading)
        assert caught.value.message == f"the data folder {tmp_path} is in use on host 'alpha' since {since}"
        assert caught.value.hint is not None
        assert caught.value.hint.startswith(
            "run flowctl on that host, or end its flowctl processes; if that host is gone, try again in "
        )
        seconds = int(caught.value.hint.removesuffix(" s").rpartition(" ")[2])
        assert SILENT_SECONDS - 5 <= seconds <= SILENT_SECONDS
    first.close()

    use(tmp_path, BETA).close()
    assert sorted(path.name for path in tmp_path.glob("host*")) == ["host.lock"]


def test_processes_of_one_machine_share_the_folder(tmp_path: Path) -> None:
    first, second = use(tmp_path, ALPHA), use(tmp_path, Host("a container on alpha", "1"))
    first.close()

    with pytest.raises(StorageError, match="is in use on host 'alpha' since"):
        use(tmp_path, BETA)
    second.close()
    use(tmp_path, BETA).close()


@pytest.mark.parametrize(
    ("host", "other", "same"),
    [
        (ALPHA, Host("another name", "1"), True),  # a container
        (ALPHA, Host("alpha", "2"), False),  # another machine of that name, or this one before it was started again
        (Host("alpha", ""), Host("alpha", ""), True),  # where systems do not tell their start
        (Host("alpha", ""), Host("alpha", "1"), True),
        (Host("alpha", ""), Host("beta", ""), False),
    ],
)
def test_hosts_are_compared_by_identity(host: Host, other: Host, same: bool) -> None:
    assert (host.is_same(other), other.is_same(host)) == (same, same)


def test_silent_machine_loses_the_host_lock_and_gets_an_error(tmp_path: Path) -> None:
    asleep = use(tmp_path, ALPHA)
    say_nothing(tmp_path, SILENT_SECONDS - 1)
    with pytest.raises(StorageError, match="in use on host 'alpha'"):
        use(tmp_path, BETA)

    say_nothing(tmp_path, 2)
    awake = use(tmp_path, BETA)
    assert asleep._lock is not None
    asleep._lock._beaten -= 2 * BEAT_SECONDS + 1

    with pytest.raises(
        FencedError,
        match=f"host 'beta' uses the data folder {tmp_path} now, because this host was silent",
    ):
        asleep.timeline.read()
    asleep.close()
    assert awake.timeline.read() > 0
    with pytest.raises(StorageError, match="in use on host 'beta'"):
        use(tmp_path, ALPHA)
    awake.close()


def test_machine_that_lost_the_host_lock_renews_no_capabilities(tmp_path: Path) -> None:
    """L5: a second writer of a database on a network file system would damage it."""
    asleep = use(tmp_path, ALPHA)
    table = asleep.tables.create("t", (TableColumn("a", "bigint"),))
    capability = asleep.capabilities.acquire_read(table.id)
    say_nothing(tmp_path, SILENT_SECONDS + 1)
    awake = use(tmp_path, BETA)
    assert asleep._lock is not None
    check, checked = asleep._lock.check, threading.Semaphore(0)
    asleep._lock._beaten -= 2 * BEAT_SECONDS + 1

    def guard() -> None:
        try:
            check()
        finally:
            checked.release()

    asleep._metadata.guard = guard
    with Renewals(asleep._metadata, 0.01).renewed(capability.id):
        assert [checked.acquire(timeout=PATIENCE_SECONDS) for _ in range(3)] == [True] * 3
    assert awake.capabilities.find(capability.id).expires == capability.expires
    awake.close()
    asleep.close()


def test_suspended_machine_continues_if_no_machine_took_its_lock(tmp_path: Path) -> None:
    store = use(tmp_path, ALPHA)
    say_nothing(tmp_path, 2 * SILENT_SECONDS)
    assert store._lock is not None
    store._lock._beaten -= 2 * BEAT_SECONDS + 1

    assert store.timeline.read() > 0
    with pytest.raises(StorageError, match="in use on host 'alpha'"):
        use(tmp_path, BETA)
    store.close()


def test_idle_process_renews_the_host_lock(tmp_path: Path) -> None:
    lock = HostLock(tmp_path, ALPHA)
    say_nothing(tmp_path, SILENT_SECONDS + 1)

    lock.beat()

    assert time.time() - (tmp_path / "host.lock").stat().st_mtime < SILENT_SECONDS / 2
    lock.release()


def test_killed_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from derive.storage.store import Store;"
        "Store(Path(sys.argv[1]), durable=False); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path], check=False, cwd=Path(__file__).parents[2])
    with pytest.raises(StorageError, match=f"in use on host '{this_host().name}'"):
        use(tmp_path, BETA)

    Store(tmp_path, durable=False).close()

    use(tmp_path, BETA).close()


@pytest.mark.parametrize("content", [b"", b'{"name": "al', b"[]", b"null"])
def test_torn_lock_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "host.lock").write_bytes(content)

    first = use(tmp_path, ALPHA)

    with pytest.raises(StorageError, match="in use on host 'alpha'"):
        use(tmp_path, BETA)
    first.close()


def test_workers_on_other_machines_do_not_open_the_metadata(
    catalog_of: Callable[..., CatalogSpec], tmp_path: Path
) -> None:
    """A worker is a process that is handed a plan; it must do without the database, which is taken away meanwhile."""
    from derive.engine.executor import InProcessExecutor
    from derive.shard.progress import Message, Progress

    class ElsewhereExecutor(InProcessExecutor):
        @override
        def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
            names = ["metadata.db", "metadata.db-wal", "metadata.db-shm", "host.lock"]
            for name in names:
                (plan.root / name).rename(plan.root / f"{name}.away")
            try:
                return super().execute(plan, progress)
            finally:
                assert not any((plan.root / name).exists() for name in names)
                for name in names:
                    (plan.root / f"{name}.away").rename(plan.root / name)

    schema = "{type: object, required: [id], properties: {id: {type: integer}}}"
    catalog = catalog_of(f"""
collections:
  h/source: {{key: [/id], schema: {schema}}}
  h/kept:
    key: [/id]
    schema: {schema}
    derive:
      using: {{sqlite: {{migrations: ["CREATE TABLE t (id INTEGER PRIMARY KEY);"]}}}}
      transforms:
        - {{name: keep, source: h/source, shuffle: {{key: [/id]}}, lambda: "INSERT INTO t VALUES ($id) RETURNING id;"}}
""")
    world = World(tmp_path / "data", catalog)
    world.ingest("h/source", [{"id": 1}, {"id": 2}], None)
    world.wall += 10_000_000

    world.step(ElsewhereExecutor(), shards=2)

    assert sorted(row[3] for row in world.rows("h/kept")) == ['{"id":1}', '{"id":2}']
