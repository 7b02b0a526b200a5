"""Sources are fed whatever is killed, dropped, made again or replaced: each line is a row once, of the right source."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from patience import PATIENCE_SECONDS
from sql_world import Client

from derive import failpoint
from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.sources.definitions import SourceDefinition
from derive.sql.sources.source_feeder import IngestionThread
from derive.sql.transactions.writes import Write

T = TypeVar("T")
EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "8"))
NAMES = st.sampled_from(["a", "b", "c"])

PROCESSES = multiprocessing.get_context("forkserver")


async def read(client: Client, name: str) -> list[int] | str:
    """The numbers that a source has, or the SQLSTATE with which it cannot be read."""
    try:
        return sorted(int(text or "") for (text,) in await client(f"SELECT data::text FROM {name}"))
    except SqlError as error:
        return error.sqlstate


async def until(client: Client, name: str, expected: list[int] | str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while (seen := await read(client, name)) != expected:
        assert time.monotonic() < end, f"{name} has {seen}, and {expected} was expected"
        assert isinstance(seen, str) or isinstance(expected, str) or len(seen) < len(expected), "something came twice"
        await asyncio.sleep(0.01)


# Kills


async def _feed(data: Path, armed: str) -> None:
    """Feed until there is nothing new for a while, or one is killed."""
    coordinator = Coordinator(data, None)
    failpoint.arm(armed)
    coordinator.own()
    client, before = Client(coordinator), -1
    while (count := int((await client("SELECT count(*) FROM s"))[0][0] or "")) != before:
        before = count
        await asyncio.sleep(0.3)
    await coordinator.close()


def _fed(data: Path, armed: str = "") -> None:
    asyncio.run(_feed(data, armed))


def _fed_for_ever(data: Path) -> None:
    async def feed() -> None:
        Coordinator(data, None).own()
        await asyncio.sleep(1_000)

    asyncio.run(feed())


def lines_of(numbers: Sequence[int]) -> str:
    return "".join(f"{number}\n" for number in numbers)


def looked(data: Path, work: Callable[[Client], Awaitable[T]]) -> T:
    async def look() -> T:
        coordinator = Coordinator(data, None)
        try:
            coordinator.own()
            return await work(Client(coordinator))
        finally:
            await coordinator.close()

    return asyncio.run(look())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["metadata.committing", "metadata.committed"])
def test_killed_ingestion_yields_each_line_once(point: str, tmp_path: Path) -> None:
    path, data = tmp_path / "numbers", tmp_path / "data"
    path.write_text("")
    looked(data, lambda client: client(f"CREATE SOURCE s FROM FILE '{path}' FORMAT JSON"))
    numbers: list[int] = []
    killed = 0
    for times in range(1, 9):
        numbers += range(len(numbers), len(numbers) + 5)
        with path.open("a") as file:
            file.write(lines_of(numbers[-5:]))
        process = PROCESSES.Process(target=_fed, args=(data, f"{point}:{times}"))
        process.start()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode in {0, -signal.SIGKILL}
        killed += process.exitcode != 0
    looked(data, lambda client: until(client, "s", numbers))
    assert killed


@pytest.mark.torture  # test_killed_ingestion_yields_each_line_once
def test_successive_servers_resume_a_source_after_kills(tmp_path: Path) -> None:
    path, data, random = tmp_path / "numbers", tmp_path / "data", Random(7)
    path.write_text("")
    looked(data, lambda client: client(f"CREATE SOURCE s FROM FILE '{path}' FORMAT JSON"))
    numbers: list[int] = []
    for _ in range(5):
        process = PROCESSES.Process(target=_fed_for_ever, args=(data,))
        process.start()
        end = time.monotonic() + random.uniform(0.2, 1)
        with path.open("a", buffering=1) as file:
            while time.monotonic() < end:
                numbers.append(len(numbers))
                file.write(f"{numbers[-1]}\n")
                time.sleep(0.002)
        process.kill()
        process.join()
    looked(data, lambda client: until(client, "s", numbers))


# Everything that users do


@dataclass
class Followed:
    """A source, and what is expected of it."""

    path: Path
    begun: list[str] = field(default_factory=list)
    is_replaced: bool = False


class Sources(RuleBasedStateMachine):
    """Sources come, go, and are made again, while files grow and are replaced, and servers restart."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="flow-sources-")
        self.root = Path(self.folder.name)
        self.loop = asyncio.new_event_loop()
        self.sources: dict[str, Followed] = {}
        self.lines: dict[Path, list[int]] = {}
        self.unfinished: dict[Path, str] = {}
        for name in ("one", "two"):
            path = self.root / name
            path.write_text("")
            self.lines[path], self.unfinished[path] = [], ""
        self.number = 0
        self.begin()

    def begin(self) -> None:
        async def begun() -> tuple[Coordinator, Client]:
            coordinator = Coordinator(self.root / "data", None)
            coordinator.own()
            return coordinator, Client(coordinator)

        self.coordinator, self.client = self.loop.run_until_complete(begun())

    def run(self, text: str) -> None:
        self.loop.run_until_complete(self.client(text))

    @rule(name=NAMES, file=st.sampled_from(["one", "two"]))
    def create(self, name: str, file: str) -> None:
        if name not in self.sources:
            self.run(f"CREATE SOURCE {name} FROM FILE '{self.root / file}' FORMAT JSON")
            self.sources[name] = Followed(self.root / file)

    @rule(name=NAMES, is_one_transaction=st.booleans())
    def make_again(self, name: str, is_one_transaction: bool) -> None:
        """Under the same name, at once: another source, which begins anew."""
        if name in self.sources:
            path = self.sources[name].path
            texts = [f"DROP SOURCE {name}", f"CREATE SOURCE {name} FROM FILE '{path}' FORMAT JSON"]
            for text in ["BEGIN", *texts, "COMMIT"] if is_one_transaction else texts:
                self.run(text)
            self.sources[name] = Followed(path)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        if self.sources.pop(name, None):
            self.run(f"DROP SOURCE {name}")

    @rule(name=NAMES, other=NAMES)
    def rename(self, name: str, other: str) -> None:
        if name in self.sources and other not in self.sources:
            self.run(f"ALTER SOURCE {name} RENAME TO {other}")
            self.sources[other] = self.sources.pop(name)

    @rule(file=st.sampled_from(["one", "two"]), count=st.integers(0, 300), digits=st.sampled_from(["", "1", "12"]))
    def append(self, file: str, count: int, digits: str) -> None:
        """Lines, and the beginning of another one, which is finished the next time."""
        path = self.root / file
        text = ""
        for _ in range(count):
            self.number += 1
            text += f"{self.number}\n"
            self.lines[path].append(int(self.unfinished[path] + str(self.number)))
            self.unfinished[path] = ""
        with path.open("a") as file_:
            file_.write(text + digits)
        self.unfinished[path] += digits

    @rule()
    def restart(self) -> None:
        self.loop.run_until_complete(self.coordinator.close())
        self.begin()

    @rule()
    def look(self) -> None:
        """Each source has all that is in its file, once."""
        for name, source in self.sources.items():
            self.loop.run_until_complete(until(self.client, name, sorted(self.lines[source.path])))

    @precondition(lambda self: any(self.lines.values()))
    @rule(file=st.sampled_from(["one", "two"]), is_shorter=st.booleans())
    def replace(self, file: str, is_shorter: bool) -> None:
        """Another file of that name is an error, until the one that was followed is back; others go on."""
        path = self.root / file
        followers = [name for name, source in self.sources.items() if source.path == path]
        if not self.lines[path] or not followers:
            return
        self.look()
        content = path.read_bytes()
        path.write_bytes(content[:1] if is_shorter else b" " + content)
        for name in self.sources:
            other = sorted(self.lines[self.sources[name].path])
            self.loop.run_until_complete(until(self.client, name, "55000" if name in followers else other))
        rows = self.loop.run_until_complete(self.client("SHOW MAINTENANCE"))
        failures = {name for name, _, error, *_ in rows if error and error.startswith("SqlError: ")}
        assert failures == set(followers)
        path.write_bytes(content)
        self.look()

    def teardown(self) -> None:
        try:
            self.look()
        finally:
            self.end()

    def end(self) -> None:
        self.loop.run_until_complete(self.coordinator.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()


TestSources = Sources.TestCase
TestSources.settings = settings(max_examples=EXAMPLES, stateful_step_count=12, deadline=None)


# Each on its own


def fed(coordinator: Coordinator, name: str) -> SourceDefinition:
    item = coordinator.objects.find(None, name)
    assert item
    source = SourceDefinition.of(item)
    assert source
    return source


async def counted(written: Sequence[object], count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(written) < count:
            await asyncio.sleep(0.01)


async def test_stalled_source_delays_only_its_successor(tmp_path: Path, coordinator: Coordinator) -> None:
    (tmp_path / "numbers").write_text("1\n")
    client, released = Client(coordinator), threading.Event()
    for name in ("slow", "quick"):
        await client(f"CREATE SOURCE {name} FROM FILE '{tmp_path / 'numbers'}' FORMAT JSON")
        await until(client, name, [1])
    await coordinator.source_feeder.close()  # what follows feeds them by other means
    (tmp_path / "numbers").write_text("1\n2\n")
    written: list[Sequence[Write]] = []
    begun = threading.Event()

    def stuck(writes: Sequence[Write]) -> None:
        begun.set()
        released.wait(PATIENCE_SECONDS)
        written.append([(-1, (), 0), *writes])

    slow = fed(coordinator, "slow")
    first = IngestionThread(coordinator.store, slow, stuck)
    second = IngestionThread(coordinator.store, fed(coordinator, "quick"), written.append)
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    await counted(written, 1)
    assert written[0][0][1] == ("2",)
    first.end()
    changed = replace(slow, origin={**slow.origin, "header": True})
    successor = IngestionThread(coordinator.store, changed, written.append, first)
    await asyncio.sleep(0.3)
    assert len(written) == 1, "two must not feed the same at once"
    released.set()
    await counted(written, 3)
    assert written[1][0][0] == -1
    assert written[2][-1][0] == slow.position
    for thread in (first, second, successor):
        thread.end()
        await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
        assert not thread.is_at_work


async def test_failing_sources_do_not_stop_others(tmp_path: Path, client: Client) -> None:
    count = 80
    await client("BEGIN")
    for number in range(count):
        path = tmp_path / str(number)
        if number % 2:
            path.write_text("1\n")
        await client(f"CREATE SOURCE s{number} FROM FILE '{path}' FORMAT JSON")
    await client("COMMIT")
    for number in range(count):
        await until(client, f"s{number}", [1] if number % 2 else "58P01")
    (tmp_path / "0").write_text("1\n")
    await until(client, "s0", [1])
    errors = [error for _, _, error, *_ in await client("SHOW MAINTENANCE")]
    assert len(errors) == count
    assert sum(error is not None and "No such file" in error for error in errors) == count // 2 - 1
