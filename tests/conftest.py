"""Fixtures: catalogs from text, data folders with a clock of their own, and one Spark for the whole session."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import inspect
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from textwrap import dedent
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from forked_flowctl import fork_programs
from hypothesis import HealthCheck, settings

from derive import interrupts
from derive.catalog import load
from derive.cli import pasting
from derive.contents.reads import ReadOptions, read_rows
from derive.engine.executor import Executor, InProcessExecutor
from derive.engine.run import Run
from derive.engine.task_reconciler import open_changing_run
from derive.lambda_sql.guard import HEAP
from derive.protocol.specs import CatalogSpec, Document
from derive.spark.executor import SparkExecutor
from derive.storage.capability.table import Capability
from derive.storage.ingest import Ingestion
from derive.storage.metadata.definitions import Definitions
from derive.storage.metadata.descriptions import TaskCommit, TaskState
from derive.storage.metadata.owner import Door
from derive.storage.metadata.place import VARIABLE, place_of
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.store import Store
from derive.time.extent import Limits

if TYPE_CHECKING:
    import psycopg
    from crash_client import CrashServer
    from object_server import ObjectServer
    from sql_world import Client, SqlWorld
    from toy_server import ToyServer

    from derive.sql.coordinator import Coordinator

pytest_plugins = ["conformance_fixtures"]  # of tests/connectors/conformance: pytest has room for one conftest

# A shell has its background jobs ignore Ctrl-C, and commands that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Python has one fork server, and the modules that it has imported need not be imported by each of its processes.
multiprocessing.get_context("forkserver").set_forkserver_preload(
    [
        *("pytest", "hypothesis.stateful", "jsonschema", "connectors.materialize_files.connector"),
        *("derive.sql.session", "derive.sql.coordinator", "derive.compute.instance"),
        *("derive.storage.compaction", "derive.storage.ingest", "derive.engine.task_reconciler"),
        *("derive.spark.executor", "psycopg"),
    ]
)

fork_programs()

# Temporary folders of Python are in memory, where no test waits for a disk. Those of pytest (`tmp_path`) are on a disk:
# Deno may read nothing below /dev.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    tempfile.tempdir = str(MEMORY)


def examples(all_: int, least: int = 16, share: int = 6) -> int:
    """Return how many examples a law has: all of them in `make torture`, otherwise one of `share`, but at least `least`."""
    return all_ if "FLOW_LAW_EXAMPLES" in os.environ else max(least, all_ // share)


# How fast a loaded machine makes up an example says nothing about the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(100)
)
settings.load_profile("any machine")

LATER = 1_800_000_000_000_000
"""A wall clock long after every document in these tests."""


def define(store: Store, definitions: Definitions) -> None:
    """Create, drop, rename or alter tables in one commit, as SQL does."""
    store.tables.append(store.timeline.present(), {}, definitions=definitions)


@dataclass
class World:
    """A data folder, a catalog, and a wall clock that tests set."""

    root: Path
    catalog: CatalogSpec
    wall: int = LATER
    cache: Path | None = None
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store(self.root, wall=lambda: self.wall, durable=False, cache=self.cache)

    def ingest(
        self, collection: str, documents: Sequence[Document], clock: str | None = "/at", door: Door = Door.INGEST
    ) -> None:
        spec = self.catalog.collections[collection]
        Ingestion(self.store, spec, clock=clock, door=door).load("test", enumerate(documents, start=1))

    def read_capability(self, collection: str, at: int) -> Capability:
        """Return a capability to read a collection from a time on."""
        identifier = self.store.tables.id_of(collection)
        assert identifier is not None
        return self.store.capabilities.acquire_read(identifier, at)

    def task(self, name: str) -> TaskState:
        """Return the state of a task that has run."""
        state = self.store.task(name)
        assert state is not None
        return state

    def claim(self, collection: str) -> None:
        """Have a task own a collection, as if it had derived documents; `Door.TEST` is what is left to ingest them."""
        self.store.create(self.catalog.collections[collection])
        capability, _ = self.store.acquire_task(collection, 1, [collection])
        capability = self.store.commit_task(capability, TaskCommit({}, {}, {}, documents_in=1, documents_out=0))
        self.store.release_task(capability)

    def define(self, definitions: Definitions) -> None:
        """Create, drop, rename or alter tables in one commit, as SQL does."""
        define(self.store, definitions)

    def run(
        self,
        executor: Executor | None = None,
        shards: int | None = None,
        limits: Limits | None = None,
        accepted: Sequence[str] = (),
    ) -> Run:
        executor = executor or InProcessExecutor()
        run, _ = open_changing_run(self.catalog, self.store, executor, shards=shards, limits=limits, accepted=accepted)
        return run

    def step(self, executor: Executor | None = None, shards: int | None = None, limits: Limits | None = None) -> None:
        run = self.run(executor, shards, limits)
        run.step()
        errors = [task.error for task in run.tasks.values() if task.error]
        run.close()
        if errors:
            raise errors[0]

    def rows(self, collection: str) -> list[tuple[int, int, bytes, str]]:
        parts = read_rows(self.store, self.catalog.collections[collection], ReadOptions())
        return [row for rows in parts for row in rows.tuples()]

    def digest(self) -> dict[str, str]:
        """Every byte of every derived collection, in short."""
        return {name: hashlib.sha256(repr(self.rows(name)).encode()).hexdigest() for name in self.catalog.derivations}


@pytest.fixture(autouse=True)
def process_restored() -> Iterator[None]:
    """Forget what a command in this process has left for its end: handlers of signals, Ctrl-C, and named folders."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    interrupts._received.clear()
    for option in (pasting.SOURCE, pasting.DATA):
        pasting.give(option, None)


@pytest.fixture(autouse=True)
def heap_limit_released() -> Iterator[None]:
    """Fail a test that leaves SQLite's heap limited for the tests after it."""
    held = HEAP.held
    yield
    assert HEAP.held <= held, "a session over SQLite was not closed"


@pytest.fixture
def empty_pool() -> Iterator[None]:
    """End the processes of Deno after a test."""
    from connectors.module_kit.process import POOL

    yield
    POOL.close()


@pytest.fixture(scope="session")
def server() -> Iterator[CrashServer]:
    from crash_client import crash_server

    with crash_server() as server:
        yield server


@pytest.fixture(scope="module")
def toy() -> Iterator[ToyServer]:
    from toy_server import toy_server

    with toy_server() as server:
        yield server


@pytest.fixture
def object_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """An object server that this process and its children reach by their environment."""
    from object_server import serving

    from derive.storage.location import connected

    with serving() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        connected.cache_clear()
        yield store
        connected.cache_clear()


@pytest.fixture(scope="module")
def postgres() -> Iterator[psycopg.Connection[Any]]:
    """A connection to a PostgreSQL, in UTC, which commits each statement."""
    from postgres_server import server

    with server().connect() as connection:
        connection.autocommit = True
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("both_databases"):
        metafunc.fixturenames.insert(0, "database")
        metafunc.parametrize("database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of database that has the metadata of `data` below `tmp_path`."""
    name: str = request.param
    if name == "postgres":
        from postgres_server import server

        monkeypatch.setenv(VARIABLE, server().metadata_url)
        settle_place(tmp_path / "data", place_of(os.environ[VARIABLE]), creates=True)
    return name


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> SqlWorld:
    from sql_world import CATALOG, SqlWorld

    marker = request.node.get_closest_marker("catalog")
    return SqlWorld(tmp_path, marker.args[0] if marker else CATALOG)


@pytest.fixture
def event_loop() -> Iterator[asyncio.Runner]:
    """The loop of an asynchronous test, and of its fixtures."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def coordinator(world: SqlWorld, event_loop: asyncio.Runner) -> Iterator[Coordinator]:
    """The coordinator of an asynchronous test."""
    opened = world.opened()
    yield event_loop.run(opened.__aenter__())
    event_loop.run(opened.__aexit__(None, None, None))


@pytest.fixture
def client(coordinator: Coordinator, event_loop: asyncio.Runner) -> Client:
    """A session of an asynchronous test."""
    from sql_world import Client

    async def opened() -> Client:
        return Client(coordinator)

    return event_loop.run(opened())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test, in the event loop of its fixtures."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner: asyncio.Runner = pyfuncitem._request.getfixturevalue("event_loop")
    names = inspect.signature(pyfuncitem.obj).parameters
    runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def catalog_of(tmp_path: Path) -> Callable[..., CatalogSpec]:
    def build(text: str, **files: str) -> CatalogSpec:
        return load(write_catalog(tmp_path, text, **files))

    return build


def write_catalog(folder: Path, text: str, **files: str) -> Path:
    """Write a catalog and the files it refers to (`name__sql` for `name.sql`)."""
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(dedent(content))
    path = folder / "flow.yaml"
    path.write_text(dedent(text))
    return path


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkExecutor]:
    # Each part of a job is tried twice, and not four times: tests lose all of its workers, or none.
    executor = SparkExecutor("local[2,2]", tmp_path_factory.mktemp("spark") / "spark.log")
    yield executor
    executor.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the tests after one that has failed with Spark another Spark.

    A test that was interrupted, as by its time limit, leaves an unread answer of Java, which the next call would take
    for its own, and jobs that go on.
    """
    report = yield
    if report.failed and isinstance(spark := getattr(item, "funcargs", {}).get("spark"), SparkExecutor):
        _end_java(spark)
    return report


def _end_java(spark: SparkExecutor) -> None:
    """Kill the Java of an executor, which starts another one when it is used again."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.proc.kill()
    gateway.proc.wait()
    gateway.proc.stdin.close()
    with suppress(Exception):  # Java no longer answers
        gateway.shutdown()
    with warnings.catch_warnings(action="ignore"), suppress(Exception):
        spark.close()
    spark._session = None
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _rank(begun: hashlib._Hash, case: pytest.Function) -> bytes:
    digest = begun.copy()
    digest.update(case.name.encode())
    return digest.digest()


def leave_to_torture(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of tests with `sampled(n)` as `torture`, except n cases.

    These have each value of a parameter about equally often; among equals, the text of the file and the name of the test
    decide. So a commit has one sample, and the tests of a file have different values.
    """
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("sampled"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        mark = cases[0].get_closest_marker("sampled")
        seed = hashlib.sha256(cases[0].path.read_bytes())
        assert mark
        values = {case: list(enumerate(case.callspec.id.split("-"))) for case in cases}
        cases.sort(key=partial(_rank, seed))
        times = Counter[tuple[int, str]]()
        for _ in range(min(mark.args[0], len(cases))):
            chosen = min(cases, key=lambda case: sum(times[value] for value in values[case]))
            times.update(values[chosen])
            cases.remove(chosen)
        for case in cases:
            case.add_marker(pytest.mark.torture)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage while tests are collected: almost every object stays, and looking takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before cases marked `torture` are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give fixtures that cost much to one of the processes that share the tests (pytest-xdist), and begin with these.

    One process has the Spark of all; and one has all tests of a file that share a fixture. Tests that take long have
    groups of their own, which begin early, too.
    """
    leave_to_torture(items)
    if not config.getoption("loadgroup", default=False):
        return
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif isinstance(item, pytest.Function) and any(
            definition.scope == "module"
            for definitions in item._fixtureinfo.name2fixturedefs.values()
            for definition in definitions
        ):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("spark", "xdist_group")])


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist tells them
def pytest_collection_finish(session: pytest.Session) -> None:
    """Name the groups in node ids, as pytest-xdist 3.8 means to: since pytest 9.2, the attribute that it sets is not read."""
    gc.freeze()  # what is collected stays to the end, and need not be looked at by the collector
    if not session.config.getoption("loadgroup", default=False):
        return
    for item in session.items:
        if marker := item.get_closest_marker("xdist_group"):
            item._id = type(item.id).parse(f"{item.nodeid}@{marker.args[0]}")
            assert item.nodeid.endswith(f"@{marker.args[0]}")


class _Watchdog:
    """Ends a process of pytest-xdist whose test hangs where `pytest-timeout` cannot interrupt it, with all stacks.

    It counts seconds in which the process could run. faulthandler's own limit counts those in which the machine or the
    process was stopped, too, and has ended all processes at once after an outage.
    """

    _MOST_SECONDS = 1200

    def __init__(self) -> None:
        self._seconds = 0
        Thread(target=self._count, name="watchdog", daemon=True).start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._seconds = 0
        return (yield)

    def _count(self) -> None:
        while self._seconds < self._MOST_SECONDS:
            time.sleep(1)
            self._seconds += 1
        os.abort()  # pytest has faulthandler write the stacks of all threads


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.pluginmanager.register(_Watchdog())
