"""A large cluster after a year: what its driver, its metadata and its requests cost, and where this bends.

`python -m bench.simulation`. 1,000 executors run 10,000 shards, and 100,000 segments are written a day. The planning,
the metadata, the choice of segments to merge and the retention of objects are the real code, in a real data folder. Not
real are the workers: they report segments and states of which only the descriptions exist, and count the requests that
real workers send. The descriptions of a year are inserted at once, as merges leave them behind, and a part of the next
day is run; `part` says how large the part is, and the figures of a day are multiplied by its inverse.

The loads divide the same numbers in three ways: many tasks with small transactions, the same tasks with large
transactions, and one task with all shards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import resource
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from typing_extensions import override

from bench.segments import DAY, described
from derive.catalog import load as load_catalog
from derive.engine.run import Run
from derive.engine.task_reconciler import open_run
from derive.engine.transactor import Checkpoint, Committed
from derive.errors import FlowError
from derive.materialize.stages import AnyPlan, stages_of
from derive.protocol.specs import CatalogSpec
from derive.shard.plan import Plan
from derive.shard.progress import Message, Progress
from derive.storage.capability.table import TaskCapability
from derive.storage.compaction import merge_groups
from derive.storage.history import GRACE
from derive.storage.metadata.chain import (
    FEW_LINKS,
    MOST_LINKS,
    Chain,
    Link,
    chains_folder,
    needs_snapshot,
    paths_of,
    replace_chains,
)
from derive.storage.metadata.descriptions import CollectionUpdate, TaskCommit
from derive.storage.metadata.segment import insert_segments
from derive.storage.metadata.sqlite import SqliteMetadata
from derive.storage.store import Store
from derive.time.extent import Limits, Load, size_of
from derive.time.positions import Segment

SECOND = 1_000_000
BEGIN = 1_800_000_000 * SECOND
DELTA_BYTES = 650
"""Bytes of a state object for each changed row, measured for random changes of a large table."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load of a cluster.

    Attributes:
        name: name of the load.
        tasks: number of derivations, each with a source of its own.
        shards: number of shards of a derivation.
        arriving: number of segments that arrive for a transaction of a derivation.
        documents: number of documents of a segment.
        published: number of segments that a transaction publishes, at most one for each shard.
        part: simulated part of a day.
    """

    name: str
    tasks: int
    shards: int
    arriving: int
    documents: int
    published: int
    part: float

    def transactions(self, segments: int) -> int:
        """Return the number of transactions of a derivation in a day of so many segments."""
        return max(1, segments // (self.tasks * (self.arriving + self.published)))


SCENARIOS = (
    Scenario("many tasks, small transactions", 100, 100, 1, 1_000, 1, 0.02),
    Scenario("many tasks, large transactions", 100, 100, 20, 25_000, 100, 0.25),
    Scenario("one task", 1, 10_000, 2_000, 1_000, 10_000, 0.25),
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The size of a cluster and of its history.

    Attributes:
        executors: number of executors with one core.
        segments: number of segments that are written in a day.
        days: number of days of history.
        state_bytes: bytes of the snapshot of a shard's state.
    """

    executors: int
    segments: int
    days: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of an object store, in dollars."""

    puts: float
    gets: float
    storage: float

    def of_requests(self, counts: Counter[str]) -> float:
        """Return the price of requests; deletions cost nothing."""
        return (counts["puts"] * self.puts + counts["gets"] * self.gets) / 1e6


def catalog_of(scenario: Scenario) -> str:
    """Return the catalog of a load."""
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    collections: dict[str, object] = {}
    for number in range(scenario.tasks):
        source, shuffle = f"sim/source{number}", {"key": ["/id"]}
        collections[source] = {"schema": schema, "key": ["/id"]}
        transform = {"name": "t", "source": source, "shuffle": shuffle, "lambda": "SELECT $id;"}
        using = {"sqlite": {"migrations": ["CREATE TABLE seen (id INTEGER PRIMARY KEY);"]}}
        derive = {"using": using, "transforms": [transform]}
        collections[f"sim/derived{number}"] = {"schema": schema, "key": ["/id"], "derive": derive}
    return json.dumps({"collections": collections})


@dataclass
class Workers:
    """An executor whose workers only report what they would have written, and count their requests.

    Attributes:
        scenario: the load.
        cluster: the size.
        has_states: whether shards report states.
        counts: requests so far, by kind.
        fetched: requests for states, if each task runs where its states are not cached.
        seconds: processor time of this class, which is no time of a driver.
    """

    scenario: Scenario
    cluster: Cluster
    counts: Counter[str] = field(default_factory=Counter)
    has_states: bool = False
    fetched: int = 0
    seconds: float = 0.0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """Return the limits unchanged."""
        return limits

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Report the work of a transaction."""
        begun = time.process_time()
        assert isinstance(plan, Plan)
        stages, attempt = stages_of(plan, self.cluster.executors), str(plan.attempt(next(self._numbers)))
        spans = [(0, plan.end)] if plan.is_small else list(itertools.pairwise(plan.slices))
        self.counts["gets"] += sum(len(read.within(*span).segments) for read in plan.reads for span in spans)
        documents = size_of(plan.reads).documents
        shards = range(min(plan.shards, documents) if self.has_states else 0)
        links = {shard: self._links(plan, shard, shard % stages.owners, attempt, documents) for shard in shards}
        self.counts["puts"] += len(paths_of(links.values()))
        self.fetched += sum(len(plan.chains.get(shard, ())) for shard in shards)
        count = 1 if plan.is_small else min(self.scenario.published, plan.shards)
        first, share = max(plan.clamp, plan.slices[0]), documents // count
        name = plan.spec.name
        segments = tuple(
            Segment(name, f"collections/{name}@/{attempt}-{number}.parquet", (), first, plan.end - 1, share, 50 * share)
            for number in range(count)
        )
        self.counts["puts"] += count
        message = Message(segments, dict.fromkeys(shards, attempt), documents, documents, links=links)
        self.seconds += time.process_time() - begun
        return [message]

    def _links(self, plan: Plan, shard: int, task: int, attempt: str, documents: int) -> Chain:
        """Return the links that a shard adds to its chain, in the object of the task that runs the shard."""
        path, chain = f"{chains_folder(plan.folder)}/{plan.epoch}-{attempt}-{task}.0", plan.chains.get(shard, ())
        delta = Link(path, shard, DELTA_BYTES * max(1, documents // plan.shards), "0" * 64)
        if not needs_snapshot(chain):
            return (delta,)
        return (delta._replace(bytes=self.cluster.state_bytes, is_snapshot=True), delta)

    def cancel(self) -> None:
        """Do nothing: no work is in progress."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class MeasuredStore(Store):
    """A data folder that measures commits of tasks.

    Attributes:
        seconds: processor time of commits.
    """

    seconds = 0.0

    @override
    def commit_task(
        self, capability: TaskCapability, commit: TaskCommit | None, updates: Sequence[CollectionUpdate] = ()
    ) -> TaskCapability:
        begun = time.process_time()
        try:
            return super().commit_task(capability, commit, updates)
        finally:
            self.seconds += time.process_time() - begun


@dataclass
class Transactions:
    """An observer that counts transactions with documents."""

    count: int = 0

    def working(self, task: str, documents: int) -> None:
        """Ignore the event."""

    def committed(self, task: str, done: Committed) -> None:
        """Count a transaction."""
        if done.documents_in:
            self.count += 1

    def failed(self, task: str, error: FlowError) -> None:
        """Raise the error."""
        raise error


class Simulation:
    """A data folder after a year, and its run.

    Args:
        folder: an empty folder.
        scenario: the load.
        cluster: the size.
    """

    def __init__(self, folder: Path, scenario: Scenario, cluster: Cluster) -> None:
        self.scenario, self.cluster, self.root = scenario, cluster, folder / "data"
        (folder / "flow.yaml").write_text(catalog_of(scenario))
        self.catalog: CatalogSpec = load_catalog(folder / "flow.yaml")
        self.wall = BEGIN
        self.workers, self.transactions = Workers(scenario, cluster), Transactions()
        self._begin()
        chains = self._age()
        self.store = self._opened()
        begun = time.process_time()
        self.run = self._run()
        for name, task in self.run.tasks.items():
            state = self.store.task(name)
            assert state is not None
            checkpoint = Checkpoint(state.positions, state.places, state.shards, {}, "", chains[name])
            task.begin_again(task.capability, checkpoint, task.beginning)
        self.opening = time.process_time() - begun

    def _begin(self) -> None:
        """Run a first transaction of each task, without states."""
        self.store = self._opened()
        self.run = self._run()
        self.merged = self.ingested = 0.0
        self.merge_counts: Counter[str] = Counter()
        self.step(1)
        self.run.close()
        self.store.close()
        self.merged = self.ingested = 0.0
        self.workers = Workers(self.scenario, self.cluster, has_states=True)
        self.transactions = Transactions()

    def _opened(self) -> MeasuredStore:
        return MeasuredStore(self.root, wall=lambda: self.wall, durable=False, cache=self.root / "cache")

    def _run(self) -> Run:
        shards = self.scenario.shards
        return open_run(self.catalog, self.store, self.workers, shards=shards, observer=self.transactions)

    def _age(self) -> dict[str, dict[int, Chain]]:
        """Insert the history of a year, as merges leave it behind, and return the chains of shards."""
        metadata = SqliteMetadata(self.root / "metadata.db", durable=False)
        chains = {name: self._chains(name) for name in self.catalog.derivations}
        with metadata.transaction() as db:
            for name in self.catalog.collections:
                documents = self.cluster.days * self.cluster.segments * self.scenario.documents
                count = max(1, documents // len(self.catalog.collections) // 1_000_000)
                last = BEGIN - self.cluster.days * DAY
                large = [
                    replaced._replace(documents=1_000_000, bytes=50_000_000)
                    for replaced in described(count, last, BEGIN - DAY, name)
                ]
                insert_segments(db, name, large)
            for name, own in chains.items():
                replace_chains(db, name, own)
        metadata.close()
        return chains

    def _chains(self, name: str) -> dict[int, Chain]:
        """Return chains of random ages; a snapshot is taken when the rest outgrows it."""
        chance, folder = random.Random(name), chains_folder(name)
        delta = DELTA_BYTES * max(1, self.scenario.arriving * self.scenario.documents // self.scenario.shards)
        longest = min(MOST_LINKS, max(FEW_LINKS, self.cluster.state_bytes // delta))
        tasks = 1 if self.scenario.published == 1 else min(self.scenario.shards, self.cluster.executors)
        chains: dict[int, Chain] = {}
        for shard in range(self.scenario.shards):
            age = chance.randint(1, longest)
            links = [Link(f"{folder}/1-{old}-{shard % tasks}.0", shard, delta, "0" * 64) for old in range(age, 0, -1)]
            chains[shard] = (links[0]._replace(bytes=self.cluster.state_bytes, is_snapshot=True), *links)
        return chains

    def step(self, seconds: float) -> None:
        """Let segments arrive, run all tasks, and merge segments."""
        self.wall += int(seconds * SECOND)
        for number in range(self.scenario.tasks):
            self.ingested += spent(partial(self._ingest, f"sim/source{number}"))
        self.wall += 2 * SECOND
        self.run.step()
        self.merged += spent(self._merge)

    def _ingest(self, name: str) -> None:
        capability = self.store.acquire_write(name)
        first, count = capability.frontier, self.scenario.arriving
        segments = [
            replaced._replace(documents=self.scenario.documents, bytes=50 * self.scenario.documents)
            for replaced in described(count, first, first + 10 * count, name)
        ]
        self.store.update_and_downgrade(capability, segments, first + 10 * count, ascending=True, is_last=True)
        self.workers.counts["puts"] += count

    def _merge(self) -> None:
        """Merge small segments as a continuous run does; the files are only counted."""
        with self.store.task_capabilities.compacting() as capability:
            assert capability is not None
            for spec in self.catalog.collections.values():
                for group in merge_groups(self.store, spec, 32):
                    path = f"collections/{spec.name}@/compacted-{uuid.uuid4()}-0.parquet"
                    first, last = min(s.clock_min for s in group), max(s.clock_max for s in group)
                    documents, size = sum(s.documents for s in group), sum(s.bytes for s in group)
                    merged = Segment(spec.name, path, (), first, last, documents, size, "0" * 64)
                    self.store.history.replace(spec.name, group, [merged], capability)
                    self.merge_counts["gets"] += len(group)
                    self.merge_counts["puts"] += 1
        self.store.garbage.collect_replaced(self.wall - GRACE)


def spent(work: Callable[[], object]) -> float:
    """Return the processor time of some work."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def simulate(scenario: Scenario, cluster: Cluster, prices: Prices) -> None:
    """Run a part of a day, and print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(Path(folder), scenario, cluster)
        daily = scenario.transactions(cluster.segments)
        steps = max(1, round(daily * scenario.part))
        begun = time.process_time()
        for _ in range(steps):
            simulation.step(86_400 / daily)
        seconds = time.process_time() - begun - simulation.workers.seconds - simulation.merged - simulation.ingested
        report(simulation, seconds, steps / daily, prices)
        simulation.run.close()
        simulation.store.close()


def report(simulation: Simulation, seconds: float, part: float, prices: Prices) -> None:
    """Print the figures of a simulation.

    Args:
        simulation: the simulation.
        seconds: processor time of the driver.
        part: simulated part of a day.
        prices: prices of the object store.
    """
    store, done, scenario = simulation.store, simulation.transactions, simulation.scenario
    chains = {name: state.chains for name in simulation.catalog.derivations if (state := store.task(name))}
    stored = [known for name in simulation.catalog.collections if (known := store.collection(name))]
    states = paths_of(chain for own in chains.values() for chain in own.values())
    requests = simulation.workers.counts + simulation.merge_counts
    per_day = Counter({kind: round(count / part) for kind, count in requests.items()})
    fetched = round(simulation.workers.fetched / part)
    bytes_stored = sum(known.bytes for known in stored)
    size = (simulation.root / "metadata.db").stat().st_size + (simulation.root / "metadata.db-wal").stat().st_size
    print(f"\n{scenario.name}: {scenario.tasks:,} tasks of {scenario.shards:,} shards; {part:.3f} of a day was run")
    rows = {
        "transactions a day": f"{done.count / part:,.0f}",
        "driver, processor time of a transaction": f"{1e3 * seconds / done.count:,.1f} ms",
        "  of this, the commit": f"{1e3 * store.seconds / done.count:,.1f} ms",
        "  of a day": f"{100 * seconds / part / 86_400:,.2f} % of a core",
        "ingestion, processor time of a commit": f"{1e3 * simulation.ingested / done.count:,.1f} ms",
        "merges, processor time of a day, without files": f"{simulation.merged / part:,.1f} s",
        "start of the run, processor time": f"{simulation.opening:,.1f} s",
        "memory of the driver, at most": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB",
        "metadata database": f"{size / 1e6:,.0f} MB",
        "live segments; of states, live objects and links": f"{sum(known.segments for known in stored):,};"
        f" {len(states):,}, {sum(len(chain) for own in chains.values() for chain in own.values()):,}",
        "requests a day: PUT, GET": f"{per_day['puts']:,}, {per_day['gets']:,}",
        "  for states: PUT without packs; GET without caches": f"{without_packs(simulation, part):,}, {fetched:,}",
        "cost of a day: requests; with states fetched each time": f"${prices.of_requests(per_day):,.2f};"
        f" ${prices.of_requests(per_day + Counter(gets=fetched)):,.2f}",
        "cost of a day: storage": f"${bytes_stored / 1e9 * prices.storage * 12 / 365:,.2f},"
        f" {bytes_stored / 1e12:,.1f} TB",
    }
    for what, value in rows.items():
        print(f"{what:<62} {value}", flush=True)


def without_packs(simulation: Simulation, part: float) -> int:
    """Return the number of PUT requests of a day if each shard stored its own state object."""
    scenario = simulation.scenario
    shards = min(scenario.shards, scenario.arriving * scenario.documents)
    return round(simulation.transactions.count * shards / part)


def main() -> None:
    """Simulate all loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executors", type=int, default=1_000, help="executors, with one core each")
    parser.add_argument("--segments", type=int, default=100_000, help="segments that are written in a day")
    parser.add_argument("--days", type=int, default=365, help="days of history")
    parser.add_argument("--state-bytes", type=int, default=2_000_000, help="bytes of the snapshot of a shard's state")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the simulated part of a day")
    parser.add_argument("--put-price", type=float, default=5.0, help="dollars for a million PUT and LIST requests")
    parser.add_argument("--get-price", type=float, default=0.4, help="dollars for a million GET requests")
    parser.add_argument("--storage-price", type=float, default=0.023, help="dollars for a gigabyte and month")
    options = parser.parse_args()
    cluster = Cluster(options.executors, options.segments, options.days, options.state_bytes)
    prices = Prices(options.put_price, options.get_price, options.storage_price)
    spawn = multiprocessing.get_context("spawn")  # each load has the memory of a process of its own
    for scenario in SCENARIOS:
        scaled = replace(scenario, part=min(1.0, scenario.part * options.scale))
        process = spawn.Process(target=simulate, args=(scaled, cluster, prices))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
