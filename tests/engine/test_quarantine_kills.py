"""Kills of runs and retries: each source document is processed or put aside, once (law L2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import LATER, World
from crash_client import CrashServer
from test_quarantine import SECOND, check_entries, document, entries, listed, world_of
from test_spark_failpoints import failing_workers

from derive.engine.quarantine import Choice, decide
from derive.errors import LostError
from derive.spark.executor import SparkExecutor
from derive.time.extent import Limits

VALUES = [1, 2, 7, 13, -1, 200, 2.5]
DOCUMENTS = [document(number, "abc"[number % 3], VALUES[number % 7], number // 4) for number in range(28)]
MORE = [document(number, "abc"[number % 3], VALUES[number % 7], number // 4) for number in range(28, 42)]

RUNNING = [
    "segment.closing",
    "segment.closed",
    "segment.synced",
    "state.linked",
    "state.committing",
    "state.committed",
    "metadata.committing",
    "metadata.committed",
]
RETRYING = ["quarantine.retrying", "quarantine.retried", "segment.closing", "segment.synced", "metadata.committing"]
KINDS = ["sql", *(pytest.param(kind, marks=pytest.mark.deno) for kind in ("typescript", "flush"))]
OF_WORKERS = [
    "segment.closing",
    "segment.closed",
    "segment.synced",
    "state.linked",
    "state.committing",
    "state.committed",
]
"""Failpoints that workers of Spark reach."""
SHUFFLED = Limits(small_documents=-1)
"""However little there is to read, it is shuffled to the workers."""
FLOWCTL = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"


class Outcome:
    """Derived and rejected documents, without timestamps of retries, which depend on the number of tries."""

    def __init__(self, world: World) -> None:
        self.rows = [(key, text) for _, _, key, text in world.rows("t/out")]
        self.entries = [(entry["transform"], entry["key"], entry["error"]) for entry in entries(world)]
        self.listed = sorted(listed(world))
        assert world.store.garbage.unknown() == []
        stored = [path for name in ("t/out", "t/out@quarantine") for path in world.store.garbage.known(name)]
        assert [path for path in stored if not (world.root / path).exists()] == []


def open_ids(world: World) -> list[str]:
    return [entry["id"] for entry in entries(world)]


def done(
    folder: Path, kind: str, shards: int, name: str, do: Callable[[str, dict[str, Any]], None]
) -> tuple[Outcome, Outcome]:
    """Run, retry everything that was put aside, and run again; return both outcomes."""
    world = world_of(folder, kind, name)
    world.ingest("t/source", DOCUMENTS)
    world.store.close()
    order = {"source": str(folder / "flow.yaml"), "data": str(folder / name)}
    do("run", {**order, "do": "run", "wall": LATER, "arguments": [shards, 9]})
    world = world_of(folder, kind, name)
    check_entries(world, DOCUMENTS, kind)
    first, ids = Outcome(world), open_ids(world)
    world.store.close()
    do("retry", {**order, "do": "retry", "wall": LATER + 100 * SECOND, "arguments": ["t/out", ids]})
    do("run", {**order, "do": "run", "wall": LATER + 200 * SECOND, "arguments": [shards, 9]})
    world = world_of(folder, kind, name)
    second = Outcome(world)
    world.store.close()
    return first, second


Undisturbed = Callable[[str], tuple[Outcome, Outcome]]


@pytest.fixture(scope="module")
def undisturbed(server: CrashServer, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return the outcomes of one shard that nobody kills, of a kind of catalog."""

    @cache
    def outcomes(kind: str) -> tuple[Outcome, Outcome]:
        return done(tmp_path_factory.mktemp(kind), kind, 1, "undisturbed", lambda _, order: server.order(order))

    return outcomes


def disturbed(
    folder: Path, kind: str, shards: int, server: CrashServer, failpoint: str, killed: str
) -> tuple[Outcome, Outcome]:
    """Return the outcomes of a history whose runs, or whose retry, are killed once each."""
    statuses = []

    def do(what: str, order: dict[str, Any]) -> None:
        if what == killed:
            statuses.append(server.attempt(order, failpoint))
        server.order(order)

    outcomes = done(folder, kind, shards, "killed", do)
    assert -signal.SIGKILL in statuses
    return outcomes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("failpoint", [*RUNNING, *(f"{name}:3" for name in RUNNING)])
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_l2_killed_run_puts_each_document_aside_once(
    kind: str, shards: int, failpoint: str, tmp_path: Path, server: CrashServer, undisturbed: Undisturbed
) -> None:
    found = disturbed(tmp_path, kind, shards, server, failpoint, "run")
    for outcome, other in zip(found, undisturbed(kind), strict=True):
        assert vars(outcome) == vars(other)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failpoint", RETRYING)
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_l2_killed_retry_gives_each_document_back_once(
    kind: str, shards: int, failpoint: str, tmp_path: Path, server: CrashServer, undisturbed: Undisturbed
) -> None:
    found = disturbed(tmp_path, kind, shards, server, failpoint, "retry")
    assert vars(found[1]) == vars(undisturbed(kind)[1])
    assert len(found[1].entries) == 2 * len(found[0].entries)
    assert found[1].listed == found[0].listed


def processed(world: World) -> tuple[int, dict[str, str]]:
    """Return the number of documents that the derivation has processed or put aside, and what it has derived."""
    state = world.store.task("t/out")
    count = state.documents_in if state else 0
    return count, world.digest() if count else {}


@pytest.mark.spark
@pytest.mark.torture  # other tests kill workers of Spark, and processes with a quarantine
@pytest.mark.parametrize("failpoint", OF_WORKERS)
@pytest.mark.parametrize("of_retry", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_l2_killed_workers_of_spark_put_each_document_aside_once(
    kind: str, failpoint: str, tmp_path: Path, spark: SparkExecutor, *, of_retry: bool
) -> None:
    """All workers of one run are killed, before or after the documents are retried; the next run does its work."""
    worlds = []
    for name in ("expected", "killed"):
        world = world_of(tmp_path, kind, name)
        world.ingest("t/source", DOCUMENTS)
        for is_retried in (False, True):
            if is_retried:
                decide(world.store, world.catalog.derivations["t/out"], Choice(), "retry")
                world.wall += 100 * SECOND
            executor = spark if name == "killed" and is_retried is of_retry else None
            if executor is not None:
                before = processed(world)
                with failing_workers(executor, failpoint), pytest.raises(LostError, match="the Spark job of 't/out'"):
                    world.step(executor, 2, SHUFFLED)
                assert processed(world) == before
            world.step(executor, 2, SHUFFLED)
            if not is_retried:
                check_entries(world, DOCUMENTS, kind)
        worlds.append(Outcome(world))
        world.store.close()
    expected, killed = map(vars, worlds)
    assert killed == expected
    assert len(killed["entries"]) == 2 * len(killed["listed"])


@pytest.mark.torture
@pytest.mark.parametrize("failpoint", ["metadata.committing:4", "metadata.committed:4", "metadata.committing:6"])
@pytest.mark.parametrize("kind", KINDS)
def test_l2_killed_run_on_spark_puts_each_document_aside_once(kind: str, failpoint: str, tmp_path: Path) -> None:
    """The process that commits is killed."""
    world, expected = (world_of(tmp_path, kind, name) for name in ("killed", "expected"))
    for one in (world, expected):
        one.ingest("t/source", DOCUMENTS)
    expected.step(shards=1)
    command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle", "--shards", "2", "--local-documents", "0"]
    command += ["--source", str(tmp_path / "flow.yaml"), "--data", str(world.root)]
    statuses = [
        subprocess.run(
            command, env=os.environ | {"FLOW_FAILPOINT": each}, stderr=subprocess.DEVNULL, check=False
        ).returncode
        for each in (failpoint, "")
    ]
    assert statuses == [-signal.SIGKILL, 0]
    check_entries(world, DOCUMENTS, kind)
    assert vars(Outcome(world)) == vars(Outcome(expected))
