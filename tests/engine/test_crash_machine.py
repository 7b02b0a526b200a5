"""A state machine of a data folder's life, with crashes at random failpoints, beside a twin to which none happen.

Everything that can happen to a data folder is mixed: documents come, catalogs are edited (transforms are added, removed,
renamed, delayed, backfilled), transactions are small or large, attempts are paused and wake up much later, shards are
split, files compacted, tasks reset, the clock jumps ahead and back, and two catalogs share the folder, one with names
that go on from the other's. After every step both folders hold the same bytes (law L2), frontiers have not moved back
and nothing below them has changed (law L3), and a run that was superseded has committed nothing (law L5). In the end no
file is left that belongs to nothing, and starting over gives what one go over everything gives (law L1).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
from conftest import World
from crash_client import CRASHES, CrashServer
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.document.clock import format_rfc3339
from derive.shard.state import FOLD_BYTES, shard_folder, task_folder
from derive.storage.metadata.chain import paths_of

BASE = 1_700_000_000_000_000
SECOND = 1_000_000
EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "2"))

SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck))
TASKS = ["x/counts", "x/large", "x/echo"]
DERIVED = [*TASKS, "x/counts/daily"]


CATALOG = """
collections:
  x/source:
    schema:
      type: object
      required: [id, k, v, at]
      properties: {id: {type: integer}, k: {type: string}, v: {type: integer}, at: {type: string}}
    key: [/id]
  x/counts:
    schema:
      type: object
      required: [k, n, sum]
      reduce: {strategy: merge}
      properties: {k: {type: string}, n: {type: integer}, sum: {type: integer}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: COUNTING
          source: x/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING 'all' AS k, n, $v AS sum;
        - name: forget
          disable: REMEMBERS
          source: x/source
          shuffle: {key: [/k]}
          readDelay: DELAY
          lambda: UPDATE seen SET n = n - 1 WHERE k = $k;
  x/large:
    schema: {type: object, required: [n], properties: {n: {type: integer}, sum: {type: integer}}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE last (n INTEGER PRIMARY KEY);"]}}
      transforms:
        - name: keep
          source: x/counts
          shuffle: {key: [/n]}
          backfill: BACKFILL
          lambda: INSERT INTO last VALUES ($n) ON CONFLICT DO NOTHING RETURNING n, $sum;
  x/echo:
    schema: {type: object, required: [k, v, loud], properties: {k: {type: string}, v: {type: integer}, loud: {type: integer}}}
    key: [/k, /loud]
    projections: {loud: {location: /loud, partition: true}}
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: call, source: x/source, shuffle: {key: [/k]}, lambda: "SELECT $k, $v, $v > 2 AS loud;"}
        - name: echo
          source: {name: x/echo, partitions: {include: {loud: [1]}}}
          shuffle: {key: [/k]}
          lambda: SELECT $k || 'o' AS k, $v - 1 AS v, $v > 3 AS loud;
"""


OTHER = """
collections:
  x/source:
    schema:
      type: object
      required: [id, k, v, at]
      properties: {id: {type: integer}, k: {type: string}, v: {type: integer}, at: {type: string}}
    key: [/id]
  x/counts/daily:
    schema: {type: object, required: [k, n], properties: {k: {type: string}, n: {type: integer}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: count
          source: x/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, $v) ON CONFLICT DO UPDATE SET n = n + $v RETURNING k, n;
"""
PAUSES = ["segment.closing", "segment.synced", "state.committing", "state.committed"]
"""Where an attempt is paused that has begun, and is not the one that wins: while it holds no lock (for that see
test_late_attempts.py), as the other one would wait for five seconds each time."""


def catalog_of(counting: str, forgets: bool, backfill: int, delay: str) -> str:
    """The catalog in one of the forms it takes over time."""
    text = CATALOG.replace("COUNTING", counting).replace("BACKFILL", str(backfill)).replace("DELAY", delay)
    return text.replace("REMEMBERS", "false" if forgets else "true")


class CrashMachine(RuleBasedStateMachine):
    """Two data folders with one history; crashes happen to the first."""

    server: CrashServer

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="crash-machine-"))
        self.clock = BASE
        self.documents: list[dict[str, Any]] = []
        self.ahead = 0
        self.most = 1_000_000
        self.form: dict[str, Any] = {"counting": "count", "forgets": True, "backfill": 0, "delay": "2s"}
        self.renamed = 0
        self.seen: dict[str, tuple[int, list[Any]]] = {}
        self.machine = ""  # whose cache has the states of shards, which travel; empty for the data folder

    @initialize(shards=st.sampled_from([1, 2, 3]), form=st.booleans())
    def begin(self, shards: int, form: bool) -> None:
        self.shards = shards
        self.form["forgets"] = form
        self.write_catalog()

    def write_catalog(self) -> None:
        path = self.folder / "flow.yaml"
        path.write_text(catalog_of(**self.form))
        (self.folder / "other.yaml").write_text(OTHER)
        self.catalog, self.other = load(path), load(self.folder / "other.yaml")

    def do(self, what: str, *arguments: Any, crashes: list[str], source: str = "flow.yaml", late: str = "") -> None:
        order = {"do": what, "source": str(self.folder / source), "wall": self.clock + self.ahead}
        disturbed = {"data": str(self.folder / "disturbed"), "arguments": [*arguments, *([late] if late else [])]}
        disturbed["cache"] = str(self.folder / self.machine) if self.machine else ""
        self.server.order(order | disturbed, crashes)
        self.server.order(order | {"data": str(self.folder / "twin"), "arguments": arguments})
        self.look()

    def look(self) -> None:
        """Compare with the twin, and with what there was before."""
        disturbed, twin = self.world("disturbed"), self.world("twin")
        try:
            for name in {**self.catalog.collections, **self.other.collections}:
                known, other = disturbed.store.collection(name), twin.store.collection(name)
                assert (known is None) == (other is None)
                if known is None or other is None:
                    continue
                rows = self.rows(disturbed, name)
                assert known.documents == other.documents
                its_rows = self.rows(twin, name)
                if name in DERIVED:
                    assert (known.upper, rows) == (other.upper, its_rows)
                else:  # an ingestion that died holds `upper` back until a run finds that it did
                    assert rows == its_rows[: len(rows)]
                upper, before = self.seen.get(name, (0, []))
                assert known.upper >= upper
                assert rows[: len(before)] == before
                assert all(row[0] >= upper for row in rows[len(before) :])
                self.seen[name] = (known.upper, rows)
                task, its = disturbed.store.task(name), twin.store.task(name)
                assert (task is None) == (its is None)
                if task and its:
                    assert (task.shards, task.positions, task.documents_in, task.documents_out, task.error) == (
                        its.shards,
                        its.positions,
                        its.documents_in,
                        its.documents_out,
                        None,
                    )
        finally:
            disturbed.store.close()
            twin.store.close()

    def rows(self, world: World, name: str) -> list[Any]:
        spec = {**self.catalog.collections, **self.other.collections}[name]
        return [row for rows in read_rows(world.store, spec, ReadOptions()) for row in rows.tuples()]

    def world(self, name: str) -> World:
        return World(self.folder / name, self.catalog, wall=self.clock)

    @rule(
        values=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), min_size=1, max_size=6), crashes=CRASHES
    )
    def ingest(self, values: list[tuple[str, int]], crashes: list[str]) -> None:
        added: list[dict[str, Any]] = []
        for k, v in values:
            number = len(self.documents) + len(added)
            added.append({"id": number, "k": k, "v": v, "at": format_rfc3339(self.clock)})
            self.clock += 400_000
        self.do("ingest", "x/source", len(self.documents), added, crashes=crashes)
        self.documents += added

    @rule(seconds=st.sampled_from([0, 0, 1, 10]), crashes=CRASHES)
    def run(self, seconds: int, crashes: list[str]) -> None:
        self.clock += seconds * SECOND
        self.do("run", self.shards, self.most, crashes=crashes)

    @rule(most=st.sampled_from([1, 3, 10, 1_000_000]))
    def take_on(self, most: int) -> None:
        self.most = most

    @rule(seconds=st.sampled_from([1, 10]), where=st.sampled_from(PAUSES))
    def run_beside_paused_attempts(self, seconds: int, where: str) -> None:
        self.clock += seconds * SECOND
        self.do("run", self.shards, self.most, crashes=[], late=where)

    @rule(machine=st.sampled_from(["", "one", "two", "two"]))
    def move(self, machine: str) -> None:
        """The next runs are on another machine, or keep states in the data folder; the twin always keeps them there."""
        self.machine = machine

    @rule()
    def lose_machine(self) -> None:
        if self.machine:
            shutil.rmtree(self.folder / self.machine, ignore_errors=True)

    @rule()
    def wake(self) -> None:
        """Let paused attempts go on to their end, which changes nothing."""
        self.wake_all()
        self.look()

    def wake_all(self) -> None:
        file = self.folder / "disturbed.late"
        numbers = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        for number in numbers:
            with suppress(ProcessLookupError):  # it held a lock, and was ended
                os.kill(int(number), signal.SIGCONT)
        for number in numbers:
            while Path(f"/proc/{number}/stat").exists() and _state_of(number) != "Z":
                time.sleep(0.01)

    @rule(seconds=st.sampled_from([1, 20]), crashes=CRASHES)
    def run_the_other_catalog(self, seconds: int, crashes: list[str]) -> None:
        self.clock += seconds * SECOND
        self.do("run", self.shards, self.most, crashes=crashes, source="other.yaml")

    @rule(seconds=st.sampled_from([5, 40]), crashes=CRASHES)
    def jump(self, seconds: int, crashes: list[str]) -> None:
        """The wall clock is ahead once, and back where it was afterwards; what comes then is later all the same."""
        self.ahead = seconds * SECOND
        self.do("run", self.shards, self.most, crashes=crashes)
        self.ahead = 0
        self.do("run", self.shards, self.most, crashes=crashes)
        self.clock += seconds * SECOND

    @rule()
    def take_over(self) -> None:
        self.do("take_over", self.shards, crashes=[])
        self.clock += 5 * SECOND

    @rule(task=st.sampled_from(TASKS), shards=st.sampled_from([2, 4, 6]), crashes=CRASHES)
    def split(self, task: str, shards: int, crashes: list[str]) -> None:
        self.do("split", task, shards, crashes=crashes)

    @rule(crashes=CRASHES)
    def compact(self, crashes: list[str]) -> None:
        self.do("compact", crashes=crashes)

    @rule(task=st.sampled_from(TASKS), crashes=CRASHES)
    def reset(self, task: str, crashes: list[str]) -> None:
        for each in [task, *(["x/large"] if task == "x/counts" else [])]:
            self.seen.pop(each, None)
        self.do("reset", task, crashes=crashes)

    @rule(change=st.sampled_from(["rename", "forget", "backfill", "delay"]), crashes=CRASHES)
    def evolve(self, change: str, crashes: list[str]) -> None:
        if change == "rename":
            self.renamed += 1
            self.form["counting"] = f"count{self.renamed}"
        elif change == "forget":
            self.form["forgets"] = not self.form["forgets"]
        elif change == "delay":
            self.form["delay"] = {"2s": "0s", "0s": "5s", "5s": "2s"}[self.form["delay"]]
        else:
            self.form["backfill"] += 1
        self.write_catalog()
        self.do("run", self.shards, self.most, crashes=crashes)

    def teardown(self) -> None:
        self.wake_all()
        with suppress(FileNotFoundError):
            if self.documents:
                self.finish()
        shutil.rmtree(self.folder)

    def finish(self) -> None:
        self.clock += 60 * SECOND
        for source in ("flow.yaml", "other.yaml"):
            self.do("run", self.shards, self.most, crashes=[], source=source)
            self.do("compact", crashes=[], source=source)
        world = self.world("disturbed")
        self.assert_tidy(world)
        world.store.close()
        for task in ("x/counts", "x/echo"):
            self.reset(task, [])
        self.do("run", self.shards, self.most, crashes=[])
        order = {"source": str(self.folder / "flow.yaml"), "wall": self.clock, "data": str(self.folder / "oracle")}
        self.server.order(order | {"do": "ingest", "arguments": ["x/source", 0, self.documents]})
        self.server.order(order | {"do": "run", "arguments": [1, 1_000_000]})
        oracle, disturbed = self.world("oracle"), self.world("disturbed")
        assert disturbed.digest() == oracle.digest()
        oracle.store.close()
        disturbed.store.close()

    def assert_tidy(self, world: World) -> None:
        """Every file belongs to something, and every shard is where the metadata says it is."""
        root = world.root
        belong = {"metadata.db", "metadata.db-wal", "metadata.db-shm", "host.lock"}
        belong |= {"commits", "folder-id"}
        for name in {**self.catalog.collections, **self.other.collections}:
            belong |= world.store.garbage.known(name)
        for name in DERIVED:
            task = world.task(name)
            belong |= {str(file.relative_to(root)) for file in task_folder(root, name).glob("epochs/*")}
            belong |= {f"logs/{name}@.jsonl"} | paths_of(task.chains.values())
            for number in range(task.shards):
                folder = shard_folder(root, name, number, task.shards)
                belong |= {str((folder / file).relative_to(root)) for file in ("state.db", "lock")}
                attempts = [entry for entry in folder.glob("*-*") if entry.is_dir()]
                belong |= {str(file.relative_to(root)) for entry in attempts for file in entry.iterdir()}
                if number in task.tokens and number not in task.chains:
                    # Attempts at one transaction stay together until the next one, as does the one before it if its
                    # log was too short to be folded.
                    transaction = task.tokens[number].rpartition("-")[0]
                    others = [entry for entry in attempts if entry.name.rpartition("-")[0] != transaction]
                    assert len(others) <= 1
                    assert all((entry / "state.db-wal").stat().st_size < FOLD_BYTES for entry in others)
                    assert _token(folder, task.tokens[number]) == task.tokens[number]
        found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        assert {each for each in found - belong if not re.search(r"/ingest-[^/]*$", each)} == set()


def _state_of(number: str) -> str:
    """The state of a process, `Z` if it has ended and nobody has asked for how."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def _token(folder: Path, committed: str) -> str:
    """The attempt a shard's state is at, its log included; read from a copy, which leaves everything as it was."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "copy"
        shutil.copytree(folder, copy)
        attempt = copy / committed / "state.db"
        db = apsw.Connection(str(attempt if attempt.exists() else copy / "state.db"))
        token: str = db.execute("SELECT token FROM flow_shard").get
        db.close()
        return token


def test_l2_l3_l5_hold_under_any_actions_and_crashes(server: CrashServer) -> None:
    # To find the shortest way to a failure would take hours: each step is a process or two.
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    CrashMachine.server = server
    limits = settings(SLOW, max_examples=EXAMPLES, stateful_step_count=12, phases=phases)
    run_state_machine_as_test(CrashMachine, settings=limits)
