"""Drivers on several machines take over from one another, with the same bytes (laws L1 and L2).

The metadata is in PostgreSQL, the segments are objects, and the state of SQLite, TypeScript and Python travels. A
machine is a host name with a folder for the caches of states.
"""

from __future__ import annotations

import os
import signal
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from subprocess import DEVNULL, PIPE, TimeoutExpired
from textwrap import dedent, indent
from typing import Any

import orjson
import pytest
from conftest import World, write_catalog
from forked_flowctl import HOST, Flowctl, flowctl
from object_server import ObjectServer
from test_flush import BASE, CATALOG, MODULE
from test_python_laws import MODULE as PYTHON_MODULE

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.storage.metadata.place import VARIABLE
from derive.storage.metadata.process import is_stopped

pytest.importorskip("obstore")

pytestmark = [pytest.mark.deno, pytest.mark.xdist_group("python modules"), pytest.mark.timeout(1200)]

PYTHON = """
t/python:
  schema:
    type: object
    required: [k]
    reduce: {strategy: merge}
    properties: {k: {type: string}, v: {type: number, reduce: {strategy: sum}}, last: {type: string}, total: {type: number}}
  key: [/k]
  derive:
    using: {python: {module: python.py}}
    transforms:
      - {name: add, source: t/source, shuffle: {key: [/k]}}
      - {name: late, source: t/source, shuffle: {key: [/k]}, readDelay: 3s}
t/counts:
  schema: {type: object, required: [k, n], properties: {k: {type: string}, n: {type: integer}}}
  key: [/k]
  derive:
    using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
    transforms:
      - name: count
        source: t/source
        shuffle: {key: [/k]}
        lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING k, n;
"""
MACHINES = ("north", "south")
KILLS = (
    *("chain.putting", "chain.put", "chain.fetched", "chain.collected", "epoch.written", "segment.closing"),
    *("metadata.committing", "metadata.committed", "state.linked"),
)
PAUSES = ("epoch.written", "epoch.published", "chain.putting", "chain.put", "segment.closing", "state.linked")
_LOOK_SECONDS = 0.02
LOAD = ("ingest", "--collection", "t/source", "--clock", "/at", "--format", "json", "-")
RUN = ("run", "--until-idle", "--shards", "2", "--limits", '{"documents": 12}', "--local-documents", "1000000")


class Cluster:
    """A data folder that machines share, and what runs on them.

    Attributes:
        is_apart: whether each machine has a data folder of its own.
        stopped: runs that were stopped, and may continue.
    """

    def __init__(self, folder: Path, environment: dict[str, str], *, is_apart: bool) -> None:
        self.folder, self.environment, self.is_apart = folder, environment, is_apart
        self.stopped: list[Flowctl] = []

    def run(self, machine: str, failpoint: str = "") -> str:
        """Run on a machine until nothing is left, or until a failpoint; return what became of the run.

        A run on a busy computer may take long, so only the time limit of the test ends the wait.
        """
        data = str(self.folder / (f"data-{machine}" if self.is_apart else "data"))
        started = Flowctl(
            [*RUN, "--state-cache", str(self.folder / machine)],
            cwd=self.folder,
            env={**self.environment, HOST: machine, "FLOW_DATA": data, "FLOW_FAILPOINT": failpoint},
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            text=True,
        )
        if not ends(started):
            self.stopped.append(started)
            return "stopped"
        _, said = started.communicate()
        # Several stopped runs may wait for a lock in turn, and the server ends the transaction of each after 30 s.
        is_busy = "holds a lock on the metadata database" in said
        assert started.returncode in (0, -signal.SIGKILL) or is_busy, said
        return "ended" if started.returncode == 0 else "killed"

    def wake(self, run: Flowctl) -> None:
        """Let a stopped run continue; it is fenced, and says so, or was the last one.

        A later run on its machine may have killed it, because it had the lock of a cache.
        """
        if run.poll() is None:
            os.kill(run.pid, signal.SIGCONT)
        _, said = run.communicate()
        assert run.returncode in (0, -signal.SIGKILL) or (run.returncode == 1 and "another flowctl" in said), said
        self.stopped.remove(run)

    def close(self) -> None:
        for run in self.stopped:
            run.kill()
            run.communicate()


def ends(run: Flowctl) -> bool:
    """Wait for the end of a run, or until it is stopped; return whether it has ended."""
    while not is_stopped(run.pid):
        with suppress(TimeoutExpired):
            run.wait(_LOOK_SECONDS)
            return True
    return False


def digest(data: Path, catalog: Path) -> dict[str, str]:
    """Return every byte of the derived collections of a data folder, in short."""
    world = World(data, load(catalog))
    with closing(world.store):
        return world.digest()


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    modules = {"out__ts": MODULE, "python__py": PYTHON_MODULE.replace("t.out", "t.python")}
    write_catalog(folder, dedent(CATALOG) + indent(PYTHON, "  "), **modules)


def documents(random: Random) -> list[dict[str, Any]]:
    clock, made = BASE, []
    for number in range(90):
        clock += random.choice([1000, 400_000, 1_000_000])
        made.append(
            {"id": number, "k": random.choice(["a", "ab", "b", "bc"]), "v": number % 7, "at": format_rfc3339(clock)}
        )
    return made


@pytest.mark.sampled(1)
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("seed", range(200))
def test_machines_take_over_from_one_another_with_the_same_bytes(
    tmp_path: Path, database: str, object_server: ObjectServer, seed: int
) -> None:
    random = Random(seed)
    lines = "".join(f"{orjson.dumps(document).decode()}\n" for document in documents(random))
    environment = dict(os.environ)
    alone = {name: value for name, value in environment.items() if name != VARIABLE}
    write(tmp_path / "clean")
    assert flowctl(tmp_path / "clean", *LOAD, text=lines, env=alone)[0] == 0
    assert flowctl(tmp_path / "clean", "run", "--until-idle", env=alone)[0] == 0
    expected = digest(tmp_path / "clean" / ".flow", tmp_path / "clean" / "flow.yaml")

    write(tmp_path)
    environment["FLOW_DATA"] = str(tmp_path / "data")
    status, _, err = flowctl(tmp_path, *LOAD, "--segments", "s3://flow/data", text=lines, env=environment)
    assert status == 0, err
    cluster = Cluster(tmp_path, environment, is_apart=seed % 2 == 0)
    try:
        for _ in range(random.randint(3, 6)):
            name, times = random.choice(PAUSES), random.randint(1, 6)
            failpoint = f"{name}:{times}:pause" if random.random() < 0.5 else f"{random.choice(KILLS)}:{times}"
            outcome = cluster.run(random.choice(MACHINES), failpoint)
            if cluster.stopped and random.random() < 0.3 and outcome != "stopped":
                cluster.wake(random.choice(cluster.stopped))
        while cluster.run(random.choice(MACHINES)) == "killed":
            assert cluster.stopped
        assert digest(tmp_path / "data", tmp_path / "flow.yaml") == expected
        for run in list(cluster.stopped):
            cluster.wake(run)
        assert digest(tmp_path / "data", tmp_path / "flow.yaml") == expected
        assert cluster.run("west") == "ended"
    finally:
        cluster.close()
    assert digest(tmp_path / "data", tmp_path / "flow.yaml") == expected
    assert any("/chains/" in key for key in object_server.objects)
