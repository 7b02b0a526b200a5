"""Law L3 over any history of a data folder: frontiers tell the truth, whoever writes, reads, compacts or crashes.

A plain list of updates is the oracle: it never forgets anything, so whatever the store says it knows must be what the
list says.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from conftest import examples, write_catalog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from postgres_server import server
from psycopg.sql import SQL, Identifier
from reduction_oracle import reduce_in_memory
from storage_victim import crash, work
from typing_extensions import override

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows, reading
from derive.document.key import pack
from derive.errors import FencedError, FrontierError
from derive.failpoint import FAILPOINTS
from derive.protocol.specs import Document, SelectorSpec
from derive.storage.capability.table import Capability
from derive.storage.ingest import Ingestion
from derive.storage.metadata.place import place_of, read_place
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.segments.partition import INGESTED
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.writer import SegmentWriter
from derive.storage.store import Store
from derive.time.positions import KeptHistory, SourceRead

CATALOG = """
collections:
  m/events:
    schema:
      type: object
      required: [k, p]
      properties:
        k: {type: integer}
        p: {type: string}
        n: {type: number, reduce: {strategy: sum}}
        seen: {type: array, items: {type: integer}, reduce: {strategy: append}}
        note: {type: string, reduce: {strategy: lastWriteWins, delete: true}}
        gone: {type: boolean}
      oneOf:
        - {required: [gone], properties: {gone: {const: true}}, reduce: {strategy: merge, delete: true}}
        - {properties: {gone: false}, reduce: {strategy: merge}}
    key: [/k]
    projections: {p: {location: /p, partition: true}}
"""

NAME = "m/events"
BEGIN = 1_000_000
POINTS = sorted(each for each in FAILPOINTS if each.startswith(("compaction", "metadata", "segment")))
DOCUMENTS = st.lists(
    st.fixed_dictionaries(
        {"k": st.integers(0, 3), "p": st.sampled_from("aab")},
        optional={
            "n": st.sampled_from([0.1, 0.2, 1, -3.7]),
            "seen": st.lists(st.integers(0, 9), max_size=2),
            "note": st.just("x"),
            "gone": st.just(True),
        },
    ),
    min_size=1,
    max_size=4,
)
SELECTORS = st.sampled_from([SelectorSpec(), SelectorSpec(include={"p": ("a",)}), SelectorSpec(exclude={"p": ("a",)})])
SHARES = st.floats(0, 1)


@dataclass
class Model:
    """What a data folder must be: every update there ever was, and the frontiers."""

    updates: list[tuple[int, Document]] = field(default_factory=list)
    since: int = 0
    upper: int = 0
    last: int = 0
    writers: dict[str, int] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)

    def assign(self, wall: int, count: int) -> int:
        first = max(wall, self.last + 1)
        self.last = first + count - 1
        return first

    def seal(self, frontier: int) -> None:
        self.upper = max(self.upper, min([frontier, *self.writers.values()]))

    def bound(self, wanted: int) -> int:
        return max(self.since, min([wanted, self.upper, *self.readers.values()]))

    def between(self, begin: int, end: int, selector: SelectorSpec) -> list[tuple[int, Document]]:
        return [each for each in self.updates if begin <= each[0] < end and selector.selects({"p": each[1]["p"]})]


class Machine(RuleBasedStateMachine):
    writers = Bundle("writers")
    leases = Bundle("leases")
    slow = Bundle("slow")

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.spec = load(write_catalog(self.home, CATALOG)).collections[NAME]
        self.wall = BEGIN
        self.prepare(self.home / "data")
        self.store = self.open()
        self.store.create(self.spec)
        self.id = self.store.tables.id_of(NAME) or 0
        self.model = Model()
        self.slow_ones: list[ExitStack] = []

    def prepare(self, data: Path) -> None:
        """Choose the metadata database of a data folder: SQLite."""

    def open(self) -> Store:
        return Store(self.home / "data", wall=lambda: self.wall, durable=False)

    def teardown(self) -> None:
        for each in self.slow_ones:
            each.close()
        for identifier in (*self.model.readers, *self.model.writers):
            with suppress(FencedError):
                self.store.capabilities.release(self.store.capabilities.find(identifier))
        self.store.task_capabilities.release_inputs("t")
        work(self.store, self.spec, "forget", self.model.upper)
        paths = {str(each.relative_to(self.store.root)) for each in self.store.root.rglob("*.parquet")}
        assert paths == self.store.garbage.known(NAME)
        self.store.close()
        shutil.rmtree(self.home)

    @initialize(batches=st.lists(DOCUMENTS, max_size=5), seals=st.booleans())
    def begin(self, batches: list[list[Document]], seals: bool) -> None:
        for each in batches:
            self.wall += 10
            self.ingest(each)
        self.wall += 10
        if seals:
            self.seal()

    # Time and writing

    @rule(micros=st.integers(0, 40))
    def let_time_pass(self, micros: int) -> None:
        self.wall += micros

    @rule(documents=DOCUMENTS)
    def ingest(self, documents: list[Document]) -> None:
        work(self.store, self.spec, "ingest", documents)
        self.ingested(documents)

    def ingested(self, documents: list[Document]) -> None:
        first = self.model.assign(self.wall, len(documents))
        self.model.updates += list(enumerate(documents, start=first))
        self.model.seal(first + len(documents))

    @rule(target=writers)
    def begin_to_write(self) -> Capability:
        capability = self.store.acquire_write(NAME)
        self.model.writers[capability.id] = max(self.wall, self.model.last + 1, self.model.upper)
        assert capability.frontier == self.model.writers[capability.id]
        return capability

    @rule(writer=consumes(writers), documents=DOCUMENTS)
    def finish_to_write(self, writer: Capability, documents: list[Document]) -> None:
        first = self.store.timeline.assign(len(documents))
        files = SegmentWriter(self.store.root, self.spec, f"{INGESTED}{writer.id}")
        ingestion = Ingestion(self.store, self.spec)
        clocks = range(first, first + len(documents))
        files.write(ingestion._rows(clocks, [0] * len(documents), ingestion._checker.keys(documents), documents))
        self.store.update_and_downgrade(writer, files.close(), first + len(documents))
        self.store.capabilities.release(writer)
        del self.model.writers[writer.id]
        assert first == self.model.assign(self.wall, len(documents))
        self.model.updates += list(enumerate(documents, start=first))
        self.model.seal(first + len(documents))

    @rule(writer=consumes(writers))
    def give_up_to_write(self, writer: Capability) -> None:
        self.store.capabilities.release(writer)
        del self.model.writers[writer.id]

    @rule()
    def seal(self) -> None:
        now = self.store.timeline.read()
        assert now == max(self.wall, self.model.last + 1)
        self.model.last = now - 1
        self.model.seal(now)
        assert self.store.seal([NAME], now) == {NAME: self.model.upper}

    # Compaction

    @rule()
    def merge(self) -> None:
        work(self.store, self.spec, "merge", None)

    @rule(share=st.floats(0, 1.2))
    def forget(self, share: float) -> None:
        wanted = self.at(share)
        work(self.store, self.spec, "forget", wanted)
        self.model.since = self.model.bound(wanted)

    def at(self, share: float) -> int:
        """A clock between the first one and the last, or a little later."""
        return BEGIN + int(share * (self.model.last + 10 - BEGIN))

    # Rights to read

    @rule(target=leases, share=SHARES)
    def begin_to_read(self, share: float) -> Any:
        frontier = self.at(share)
        if frontier < self.model.since:
            with pytest.raises(FrontierError, match="was compacted"):
                self.store.capabilities.acquire_read(self.id, frontier)
            return multiple()
        capability = self.store.capabilities.acquire_read(self.id, frontier)
        self.model.readers[capability.id] = frontier
        return capability

    @rule(target=leases, lease=consumes(leases), share=SHARES)
    def downgrade(self, lease: Capability, share: float) -> Capability:
        moved = self.store.capabilities.downgrade(lease, max(lease.frontier, self.at(share)))
        self.model.readers[lease.id] = moved.frontier
        assert moved.frontier == max(lease.frontier, self.at(share))
        return moved

    @rule(lease=consumes(leases))
    def stop_to_read(self, lease: Capability) -> None:
        self.store.capabilities.release(lease)
        del self.model.readers[lease.id]

    @rule(share=SHARES)
    def hold_for_a_task(self, share: float) -> None:
        right = KeptHistory(self.model.since, "t" in self.model.readers and self.model.readers["t"] <= self.at(share))
        assert self.store.task_capabilities.acquire_inputs("t", {"x": (NAME, self.at(share))}) == {"x": right}
        self.model.readers["t"] = self.at(share)

    @rule()
    def forget_the_task(self) -> None:
        assert self.store.task_capabilities.release_inputs("t")
        self.model.readers.pop("t", None)

    # Crashes

    @rule(
        point=st.sampled_from(POINTS),
        times=st.integers(1, 3),
        step=st.sampled_from(["ingest", "merge", "forget"]),
        documents=DOCUMENTS,
        share=SHARES,
    )
    def crash(self, point: str, times: int, step: str, documents: list[Document], share: float) -> None:
        argument: Any = documents if step == "ingest" else self.at(share)
        before = self.store.collection(NAME)
        victim = CONTEXT.Process(
            target=crash, args=(self.store.root, self.wall, self.spec, f"{point}:{times}", step, argument)
        )
        victim.start()
        victim.join()
        assert victim.exitcode in (0, -signal.SIGKILL)
        known = self.store.collection(NAME)
        assert known is not None
        assert before is not None
        if step == "ingest" and known.documents > before.documents:
            self.ingested(documents)
        elif step == "ingest":
            self.store.seal([NAME], 0)  # what it held back is free
            self.model.last = max(self.model.last, self.store.timeline.assign(1))
        elif step == "forget" and known.since > before.since:
            self.model.since = self.model.bound(argument)

    # What must be so at any time

    @invariant()
    def frontiers_are_those_of_the_model(self) -> None:
        known = self.store.collection(NAME)
        assert known is not None
        assert (known.since, known.upper) == (self.model.since, self.model.upper)

    @invariant()
    def every_file_that_is_known_is_there(self) -> None:
        assert all((self.store.root / each).is_file() for each in self.store.garbage.known(NAME))

    @rule(share=SHARES, selector=SELECTORS)
    def contents_are_exact_from_since_to_upper(self, share: float, selector: SelectorSpec) -> None:
        time = self.at(share)
        options = ReadOptions(as_of=time, selector=selector)
        if not self.model.since <= time < self.model.upper:
            with pytest.raises(FrontierError):
                list(read_rows(self.store, self.spec, options))
            return
        assert self.reduced(self.read(options)) == self.reduced(self.model.between(0, time + 1, selector))

    @rule(share=SHARES, selector=SELECTORS)
    def history_is_exact_from_since_to_upper(self, share: float, selector: SelectorSpec) -> None:
        begin = self.at(share)
        options = ReadOptions(since=begin, selector=selector)
        if begin < self.model.since:
            with pytest.raises(FrontierError, match="is exact from"):
                list(read_rows(self.store, self.spec, options))
            return
        assert self.read(options) == self.model.between(begin, self.model.upper, selector)

    @rule(target=slow, selector=SELECTORS)
    def begin_to_read_slowly(self, selector: SelectorSpec) -> tuple[ExitStack, SourceRead, Any]:
        stack = ExitStack()
        self.slow_ones.append(stack)
        read = stack.enter_context(reading(self.store, self.spec, ReadOptions(selector=selector))).read
        frontiers = self.store.history.frontiers(NAME)
        assert frontiers is not None
        self.model.readers[f"slow {id(stack)}"] = max(self.model.upper, self.model.since)
        return stack, read, self.reduced(self.model.between(0, self.model.upper, selector))

    @rule(slow=consumes(slow))
    def finish_to_read_slowly(self, slow: tuple[ExitStack, SourceRead, Any]) -> None:
        stack, read, expected = slow
        assert self.reduced(rows_of(read_sorted(self.store.root, [read]))) == expected
        stack.close()
        del self.model.readers[f"slow {id(stack)}"]

    def read(self, options: ReadOptions) -> list[tuple[int, Document]]:
        return rows_of(read_rows(self.store, self.spec, options))

    def reduced(self, updates: list[tuple[int, Document]]) -> list[tuple[bytes, bytes]]:
        rows = ((pack([document["k"]]), document) for _, document in updates)
        return [(key, orjson.dumps(value)) for key, value in reduce_in_memory(self.spec, rows)]


def rows_of(parts: Iterable[ReadRows]) -> list[tuple[int, Document]]:
    return [row for rows in parts for row in zip(rows.adjusted.tolist(), rows.documents(), strict=True)]


CONTEXT = multiprocessing.get_context("forkserver")

Machine.TestCase.settings = settings(
    max_examples=examples(40, 6), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStorage = Machine.TestCase


class PostgresMachine(Machine):
    """The same history with the metadata in PostgreSQL."""

    @override
    def prepare(self, data: Path) -> None:
        settle_place(data, place_of(server().metadata_url_by_file), creates=True)

    @override
    def teardown(self) -> None:
        place = read_place(self.home / "data")
        super().teardown()
        assert place is not None
        with server().connect() as connection:
            connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(place.schema)))


PostgresMachine.TestCase.settings = settings(Machine.TestCase.settings, max_examples=examples(12, 3))
TestStorageOnPostgres = PostgresMachine.TestCase
