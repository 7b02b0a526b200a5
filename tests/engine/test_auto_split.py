"""More shards for derivations that stay behind: the rule, and splits while a run is at work."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.engine.auto_split import AutoSplit
from derive.engine.executor import InProcessExecutor
from derive.engine.scheduler import Scheduler
from derive.engine.shard_advice import EVERY_SECONDS, Pressure, can_be_split
from derive.engine.task_reconciler import open_changing_run
from derive.errors import DiskFullError
from derive.storage.store import Store
from derive.time.extent import Limits

CATALOG = """
collections:
  s/events:
    schema:
      type: object
      required: [id, at, n]
      properties: {id: {type: integer}, at: {type: string}, n: {type: integer}}
    key: [/id]
  s/counts:
    schema: &counts
      type: object
      required: [n]
      properties: {n: {type: integer}, times: {type: integer}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE t (n INTEGER PRIMARY KEY, times INTEGER);"]}}
      transforms:
        - name: count
          source: s/events
          shuffle: {key: [/n]}
          lambda: INSERT INTO t VALUES ($n, 1) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING n, times;
  s/late:
    schema: *counts
    key: [/n]
    derive:
      using: {sqlite: {}}
      transforms: [{name: wait, source: s/events, shuffle: {key: [/n]}, readDelay: 87600h, lambda: SELECT $n;}]
"""
EVENTS = [
    {"id": number, "n": number % 7, "at": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"} for number in range(200)
]


@pytest.mark.parametrize(
    ("observations", "is_split"),
    [
        ([(900, 0), (900, 100), (900, 200), (900, 300), (900, 400)], True),  # 180 s of due work for 80 s
        ([(900, 0), (900, 100), (900, 200), (900, 300)], False),  # not long enough
        ([(900, 0), (500, 100), (500, 200), (500, 300), (500, 400)], False),  # 100 s of due work
        ([(0, 0), (0, 100), (0, 200), (0, 300), (0, 400)], False),  # nothing is due: it only waits for its readDelay
        ([(900, 0), (900, 0), (900, 0), (900, 0), (900, 0)], False),  # in one long transaction
        ([(900, 0), (900, 100), (900, 100), (900, 200), (900, 300), (900, 400)], True),  # one long one between others
        ([(900, 0), (900, 100), (900, 200), (900, 300), (10, 400), (900, 500)], False),  # has caught up meanwhile
        ([(900, 0), (900, 100), (900, 200), (900, 300), (400, 400), (900, 500)], True),  # has not caught up
        ([(900, 500), (900, 0), (900, 100), (900, 200), (900, 300)], False),  # was reset
    ],
)
def test_pressure_asks_for_shards_of_tasks_that_stay_behind(
    observations: list[tuple[int, int]], is_split: bool
) -> None:
    pressure = Pressure()

    answers = [pressure.observe(20.0 * number, *observed) for number, observed in enumerate(observations)]

    assert answers == [False] * (len(answers) - 1) + [is_split]


def test_pressure_rests_after_a_split() -> None:
    pressure = Pressure()
    pressure.rest(0.0)

    answers = [pressure.observe(20.0 * number, 900, 100 * number) for number in range(20)]

    assert answers.index(True) == 18  # five minutes, and another minute far behind


@dataclass
class Splitting:
    """A run over some events, whose observations are 20 s from one another by a clock of their own."""

    folder: Path
    seconds: float = 0.0
    reports: list[str] = field(default_factory=list)
    edited: set[int] = field(default_factory=set)
    """Numbers of reports at which edits could be applied."""

    def __post_init__(self) -> None:
        self.world = World(self.folder / "data", load(write_catalog(self.folder, CATALOG)))
        self.world.ingest("s/events", EVENTS)
        executor, limits = InProcessExecutor(), Limits(documents=5)
        self.run, reconciler = open_changing_run(self.world.catalog, self.world.store, executor, limits=limits)
        self.splitting = AutoSplit(self.run, self.world.store, reconciler, 2, self.reports.append, lambda: self.seconds)

    def observe(self, scheduler: Scheduler, times: int) -> None:
        """Advance each task by one small transaction before each observation."""
        now = self.run.seal()
        for _ in range(times):
            for cycle in self.run.cycles:
                self.run.advance(cycle, now)
            self.seconds += EVERY_SECONDS
            while self.splitting.advance(scheduler, self.apply):
                time.sleep(0)  # the split is in another thread

    def apply(self) -> bool:
        self.edited.add(len(self.reports))
        return False

    def finish(self) -> dict[str, str]:
        while self.run.step():
            pass
        self.run.close()
        return self.world.digest()


def test_run_splits_a_task_that_stays_behind_with_the_same_bytes(tmp_path: Path) -> None:
    split = Splitting(tmp_path)
    with Scheduler(split.run, 1) as scheduler:
        split.observe(scheduler, 4)
        assert split.reports == []
        split.observe(scheduler, 1)
        assert split.reports == [
            "s/counts stays far behind with 1 shard: splitting it",
            "s/counts has 2 shards",
        ]
        assert {name: task.shards for name, task in split.run.tasks.items()} == {"s/counts": 2, "s/late": 1}
        assert not split.run.is_mended
        split.observe(scheduler, 6)  # 2 is the greatest number of shards
    assert len(split.reports) == 2
    assert split.edited == {0, 2}  # the run does not open the task again during the split, which would fence the split

    (tmp_path / "other").mkdir()
    assert split.finish() == Splitting(tmp_path / "other").finish()


class FullDisk:
    """A store that cannot record a split."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def note_task(self, *_: object) -> None:
        raise DiskFullError("no space left on the device")


def test_run_continues_after_a_split_that_fails(tmp_path: Path) -> None:
    split = Splitting(tmp_path)
    split.splitting.store = FullDisk(split.world.store)  # type: ignore[assignment]
    with Scheduler(split.run, 1) as scheduler:
        split.observe(scheduler, 5)
    assert split.reports[0] == "s/counts stays far behind with 1 shard: splitting it"
    assert split.reports[1] == "s/counts was not split, and continues: no space left on the device"
    assert split.run.tasks["s/counts"].shards == 1

    (tmp_path / "other").mkdir()
    assert split.finish() == Splitting(tmp_path / "other").finish()


def test_task_that_an_edit_changes_after_its_choice_is_not_split(tmp_path: Path) -> None:
    split = Splitting(tmp_path)
    with Scheduler(split.run, 1) as scheduler:
        split.observe(scheduler, 4)
        split.run.advance(("s/counts",), split.run.seal())
        split.seconds += EVERY_SECONDS
        assert split.splitting.advance(scheduler)
        split.splitting.most = 1
        assert not split.splitting.advance(scheduler)
    assert split.reports == []
    split.run.close()


def test_tasks_of_a_cycle_and_materializations_are_not_split(tmp_path: Path) -> None:
    catalog = load(write_catalog(tmp_path, CATALOG))
    cycle = CATALOG.replace(
        "source: s/events, shuffle: {key: [/n]}, readDelay: 87600h", "source: s/late, shuffle: {key: [/n]}"
    )

    assert can_be_split(catalog.derivations["s/counts"], 4, 8)
    assert not can_be_split(catalog.derivations["s/counts"], 4, 7)
    assert not can_be_split(load(write_catalog(tmp_path, cycle)).derivations["s/late"], 1, 8)
