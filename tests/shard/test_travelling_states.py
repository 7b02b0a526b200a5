"""States that travel: drivers, machines and attempts in random order, with the real store, caches and objects.

A driver may be fenced without knowing it, an attempt may end long after another attempt was committed, and a machine
may lose its cache. After each schedule a machine without a cache fetches the state, which has each committed
transaction once, as the attempt has written it that was committed.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import examples, write_catalog

from derive.catalog import load
from derive.engine.transactor import Checkpoint, Prepared
from derive.errors import FencedError, OutdatedError, StateMissingError, StorageError
from derive.protocol.specs import DerivationSpec
from derive.shard.plan import Plan
from derive.shard.state import publish_epoch, remove_objects
from derive.shard.state_objects import Pack, fault_of_chain
from derive.shard.state_store import read_state, state_store
from derive.storage.location import blobs_of
from derive.storage.metadata.chain import (
    FEW_LINKS,
    Chain,
    ChainMove,
    Link,
    ObjectReferences,
    PackedChains,
    extended,
    identity_of,
    needs_snapshot,
    paths_of,
)
from derive.storage.metadata.descriptions import TaskCommit
from derive.storage.store import Store

CATALOG = """
collections:
  s/source:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
  s/sums:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: sum, source: s/source, shuffle: {key: [/id]}, lambda: SELECT $id}]}
"""
TASK = "s/sums"
Work = Generator[None, None, Prepared]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> DerivationSpec:
    return load(write_catalog(tmp_path_factory.mktemp("catalog"), CATALOG)).derivations[TASK]


class Cluster:
    """A data folder, machines with caches, and what is under way."""

    def __init__(self, spec: DerivationSpec, folder: Path, seed: int) -> None:
        self.spec, self.folder = spec, folder
        self.random = random.Random(seed)
        self.root = folder / "data"
        self.store = Store(self.root, durable=False)
        self.lost = 0
        self.machines: list[Path | None] = [folder / "one", folder / "two", None]
        self.committed: list[str] = []
        self.counts: Counter[str] = Counter()
        self.under_way: list[tuple[Work, list[Prepared]]] = []
        self.ended: list[Work] = []  # as after kill -9: nothing is cleaned up

    def machine(self) -> Path | None:
        """Return the cache of a machine, or None to keep the state in the data folder."""
        return self.random.choice(self.machines)

    def lose(self) -> None:
        number = self.random.randrange(2)
        self.lost += 1
        self.machines[number] = self.folder / f"machine{self.lost}"

    def plan(self, checkpoint: Checkpoint, capability: Any, number: int, cache: Path | None) -> Plan:
        return Plan(
            self.spec, self.root, self.root, f"{capability.id}.{number}", capability.epoch, number, "single", 1,
            checkpoint.tokens, 0, 0, (), chains=checkpoint.chains, cache=cache,
        )  # fmt: skip

    def attempt(self, plan: Plan, number: int) -> Work:
        """Make an attempt, in steps between which others go on."""
        states, name = state_store(plan, number), str(plan.attempt(number))
        with states.open(0) as db:
            yield
            db.execute("CREATE TABLE IF NOT EXISTS done (name TEXT, filler BLOB)")
            db.execute("INSERT INTO done VALUES (?, zeroblob(?))", (name, self.random.randrange(9000)))
            db.execute("UPDATE done SET filler = zeroblob(9) WHERE rowid % 5 = 0")
            yield
        yield
        states.close()
        yield
        return Prepared(1, tokens={0: name}, links=states.links)

    def driver(self, most_attempts: int = 3) -> Iterator[None]:
        """Run the task until another driver fences this one."""
        capability, state = self.store.acquire_task(TASK, 1)
        with suppress(FencedError):
            publish_epoch(self.root, TASK, capability.epoch)
        yield
        kept = paths_of(state.chains.values())
        remove_objects(self.root, TASK, capability.epoch, keep=kept)
        checkpoint = Checkpoint({}, {}, 1, state.tokens, "", state.chains)
        for number in range(1, 1000):
            cache, ready = self.machine(), list[Prepared]()
            for attempt in range(self.random.randint(1, most_attempts)):
                if attempt:
                    cache = cache and (self.machine() or cache)  # attempts at one transaction have one form
                self.under_way.append((self.attempt(self.plan(checkpoint, capability, number, cache), attempt), ready))
                yield
            for _ in range(12):
                if ready:
                    break
                yield
            if not ready:
                self.counts["abandoned"] += 1
                continue
            prepared, moved = ready[0], checkpoint.moved({}, ready[0])
            moves = checkpoint.chain_moves(prepared)
            commit = TaskCommit({}, {}, prepared.tokens, 1, 0, chains=moves)
            try:
                self.store.commit_task(capability, commit)
            except FencedError:
                self.counts["fenced"] += 1
                return
            self.committed.append(prepared.tokens[0])
            self.counts["committed"] += 1
            self.counts["snapshots"] += any(link.is_snapshot for link in prepared.links.get(0, ()))
            if any(not move.position for move in moves):
                yield
                blobs_of(self.root).delete(paths_of(checkpoint.chains.values()) - paths_of(moved.chains.values()))
            checkpoint = moved
            yield

    def advance(self) -> None:
        """Advance an attempt by one step, or end it without a trace of an end."""
        if not self.under_way:
            return
        work, ready = self.under_way.pop(self.random.randrange(len(self.under_way)))
        if self.random.random() < 0.08:
            self.ended.append(work)
            self.counts["killed"] += 1
            return
        try:
            next(work)
        except StopIteration as stop:
            ready.append(stop.value)
        except (OutdatedError, FencedError, StorageError) as error:
            self.counts[type(error).__name__] += 1
        else:
            self.under_way.append((work, ready))

    def rows(self, cache: Path | None) -> list[str]:
        state = self.store.task(TASK)
        if state is None or not state.tokens:
            return []
        with read_state(self.store, state, 0, cache=cache) as database:
            assert database is not None
            assert database.execute("PRAGMA integrity_check").get == "ok"
            return [name for (name,) in database.execute("SELECT name FROM done ORDER BY rowid")]


def play(cluster: Cluster, steps: int) -> None:
    drivers = [cluster.driver(1)]
    for _ in range(12 * FEW_LINKS):  # a long chain first, on one machine without faults
        if len(cluster.committed) >= FEW_LINKS - 3:
            break
        next(drivers[0])
        while cluster.under_way:
            work, ready = cluster.under_way.pop()
            try:
                while True:
                    next(work)
            except StopIteration as stop:
                ready.append(stop.value)
    for _ in range(steps):
        chance = cluster.random.random()
        if chance < 0.02 and len(drivers) < 4:
            drivers.append(cluster.driver())
        elif chance < 0.03:
            cluster.lose()
        elif chance < 0.62:
            cluster.advance()
        else:
            driver = cluster.random.choice(drivers)
            if next(driver, "ended") == "ended":
                drivers.remove(driver)
                drivers = drivers or [cluster.driver()]


def test_l2_travelling_state_has_each_transaction_once(spec: DerivationSpec) -> None:
    total: Counter[str] = Counter()
    for seed in range(examples(240, 24, share=10)):
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(spec, Path(folder), seed)
            play(cluster, 300)
            for cache in (None, Path(folder) / "fresh", *cluster.machines):
                assert cluster.rows(cache) == cluster.committed, f"seed {seed}"
            total += cluster.counts
            cluster.store.close()

    assert total["committed"] > 150
    assert {"snapshots", "fenced", "killed", "abandoned", "OutdatedError", "FencedError"} <= total.keys()


def test_state_is_fetched_where_it_was_not_before(spec: DerivationSpec, tmp_path: Path) -> None:
    cluster = Cluster(spec, tmp_path, 1)
    cluster.machines = [tmp_path / "one"] * 3
    play(cluster, 0)
    capability, state = cluster.store.acquire_task(TASK, 1)
    checkpoint = Checkpoint({}, {}, 1, state.tokens, "", state.chains)
    plan = cluster.plan(checkpoint, capability, 1, tmp_path / "other")

    with state_store(plan, 0).open(0) as db:
        assert [name for (name,) in db.execute("SELECT name FROM done")] == cluster.committed
    link = state.chains[0][3]
    (cluster.root / link.path).write_bytes(b"")
    with pytest.raises(StorageError, match=f"{link.path}, which has the state of a shard, is damaged"):
        cluster.rows(tmp_path / "third")
    (cluster.root / link.path).unlink()
    with pytest.raises(StateMissingError, match=f"{link.path}, which has the state of a shard, is missing"):
        cluster.rows(tmp_path / "third")
    fault = fault_of_chain(blobs_of(cluster.root), state.chains[0], state.tokens[0])
    assert fault is not None
    assert fault[0] == link.path
    assert cluster.rows(tmp_path / "one") == cluster.committed  # the cache needs no object
    cluster.store.close()


def test_packs_are_divided_into_objects_of_limited_size(tmp_path: Path) -> None:
    pack = Pack(blobs_of(tmp_path), "t/task", 7, "token.1-0")
    links = [pack.add(bytes([number]) * (12 << 20)) for number in range(3)]
    pack.store()
    pack.store()

    assert [(link.path, link.start) for link in links] == [
        ("chains/t/task@/7-token.1-0.0", 0),
        ("chains/t/task@/7-token.1-0.0", 12 << 20),
        ("chains/t/task@/7-token.1-0.1", 0),
    ]
    assert [(tmp_path / path).stat().st_size for path in sorted(paths_of([tuple(links)]))] == [24 << 20, 12 << 20]


def link(number: int, size: int, *, is_snapshot: bool = False) -> Link:
    return Link(f"chains/t@/1-{number}.0", 0, size, "", is_snapshot)


@pytest.mark.parametrize(
    ("snapshot", "sizes", "needed"),
    [
        (0, [10] * 15, False),
        (0, [10] * 16, True),  # no snapshot yet
        (1000, [10] * 99, False),
        (1000, [10] * 100, True),  # as large as the snapshot
        (10**9, [10] * 255, False),
        (10**9, [10] * 256, True),
    ],
)
def test_snapshot_is_needed_when_the_rest_outgrows_it(snapshot: int, sizes: list[int], needed: bool) -> None:
    first = [link(0, snapshot, is_snapshot=True)] if snapshot else []
    chain = (*first, *(link(number, size) for number, size in enumerate(sizes, start=1)))

    assert needs_snapshot(chain) == needed


def test_chains_are_extended_or_restarted() -> None:
    a, b, c = link(1, 5, is_snapshot=True), link(2, 5), link(3, 5)
    chain: Chain = (a, b)

    assert extended(chain, (c,)) == (a, b, c)
    assert extended(chain, (a._replace(path="x"), c)) == (a._replace(path="x"), c)
    assert extended(chain, ()) == ()
    assert len({identity_of(links) for links in [(), (a,), (a, b), (a, c), (a, b._replace(start=1))]}) == 5


def test_object_is_unnamed_when_the_last_chain_of_its_shards_is_restarted() -> None:
    a, b, c, d = (link(number, 5) for number in range(4))
    before: dict[int, Chain] = {0: (a, b), 1: (a, b._replace(start=5)), 2: (a,)}
    references = ObjectReferences(before)

    assert references.move(before, [ChainMove(0, 2, (c,)), ChainMove(1, 0, (c,))]) == []
    after: dict[int, Chain] = {0: (a, b, c), 1: (c,), 2: (a,)}
    assert references.move(after, [ChainMove(0, 0, (d,))]) == [b.path]
    assert references.move({**after, 0: (d,)}, [ChainMove(2, 0, ()), ChainMove(1, 0, (d,))]) == [a.path, c.path]
    assert dict(PackedChains(before)) == before


def test_objects_of_later_epochs_and_other_files_stay(tmp_path: Path) -> None:
    blobs = blobs_of(tmp_path)
    names = [f"chains/t@/{name}" for name in ("1-a.0", "2-b.0", "3-c.0", "notes")]
    for name in names:
        blobs.put(name, b"x")

    remove_objects(tmp_path, "t", 2, keep=names[:1])
    assert sorted(blobs.list("chains/t@", "*")) == [names[0], *names[2:]]
    remove_objects(tmp_path, "t", 3)
    assert blobs.list("chains/t@", "*") == names[3:]
