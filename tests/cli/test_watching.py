"""A catalog edited under a `flowctl run --watch`, as a real process: what it derives is what restarts would derive."""

from __future__ import annotations

import platform
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from conftest import World, write_catalog
from forked_flowctl import Flowctl, flowctl
from patience import PATIENCE_SECONDS

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

NUMBERS = """
collections:
  w/numbers:
    schema: {type: object, required: [id, n], properties: {id: {type: integer}, n: {type: integer}}}
    key: [/id]
"""
COPIES = """
  w/NAME:
    schema: {type: object, required: [id, n], properties: {id: {type: integer}, n: {type: TYPE}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: from, source: w/SOURCE, shuffle: any, lambda: LAMBDA}]
"""
STORED = """
materializations:
  w/stored:
    endpoint: {connector: {image: materialize-sqlite, config: {path: stored.db}}}
    bindings: [{source: w/copies, resource: {table: copies}}]
"""


def copies(name: str = "copies", source: str = "numbers", lambda_: str = "one.sql", kind: str = "integer") -> str:
    parts = {"NAME": name, "SOURCE": source, "LAMBDA": lambda_, "TYPE": kind}
    text = COPIES
    for old, new in parts.items():
        text = text.replace(old, new)
    return text


class Watched:
    """A `flowctl run --watch` on a folder of its own."""

    def __init__(self, folder: Path, told: str = "told", data: str = ".flow") -> None:
        self.folder, self.told, self.data = folder, folder / told, folder / data
        self.process = self.start()
        self.count = 0

    def start(self) -> Flowctl:
        command = ["run", "--watch", "--shards", "1", "--data", str(self.data)]
        with self.told.open("ab") as told:
            return Flowctl([*command, "--source", str(self.folder / "flow.yaml")], stderr=told)

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.process.poll() is None, self.told.read_text()
            assert time.monotonic() < deadline, self.told.read_text()
            time.sleep(0.05)

    def wait_for_text(self, text: str) -> None:
        self.wait_for(lambda: text in self.told.read_text())

    def wait_for_starts(self, count: int) -> None:
        self.wait_for(lambda: self.told.read_text().count("running ") >= count)

    def edit(self, text: str, told: str, name: str = "flow.yaml") -> None:
        """Write a file of the catalog in one go, and wait until the run says something it has not said before."""
        before = self.told.read_text().count(told)
        new = self.folder / f"{name}.new"
        new.write_text(text)
        new.replace(self.folder / name)
        self.wait_for(lambda: self.told.read_text().count(told) > before)

    def ingest(self) -> None:
        """Two more documents of the source."""
        store = Store(self.data)
        documents = [{"id": number, "n": number} for number in (self.count, self.count + 1)]
        self.count += 2
        spec = load(self.folder / "flow.yaml").collections["w/numbers"]
        Ingestion(store, spec, clock=None).load("test", enumerate(documents, start=1))
        store.close()

    def documents(self, name: str) -> list[str]:
        store = Store(self.data, reading=True)
        spec = load(self.folder / "flow.yaml").collections[name]
        rows = [row[3] for part in read_rows(store, spec, ReadOptions()) for row in part.tuples()]
        store.close()
        return sorted(rows)

    def wait_for_documents(self, name: str, count: int) -> None:
        self.wait_for(lambda: len(self.documents(name)) == count)

    def error_of(self, name: str) -> str | None:
        store = Store(self.data, reading=True)
        state = store.task(name)
        store.close()
        return state.error if state else None

    def flowctl(self, *arguments: str) -> str:
        """Another command on the same folder; what it tells."""
        status, _, err = flowctl(self.folder, *arguments)
        assert status == 0, err
        return err

    def stored(self) -> list[tuple[int, int]]:
        """What is materialized; nothing before there is a table."""
        with closing(sqlite3.connect(self.folder / "stored.db")) as database:
            if not database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'copies'").fetchone():
                return []
            return database.execute("SELECT id, n FROM copies ORDER BY id").fetchall()

    def shards(self, name: str) -> int:
        store = Store(self.data, reading=True)
        state = store.task(name)
        store.close()
        return state.shards if state else 0

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return self.process.wait(PATIENCE_SECONDS)


ONE, TEN = "SELECT $id, $n + 1 AS n;", "SELECT $id, $n + 10 AS n;"


def test_watching_run_applies_edits(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    write_catalog(live, NUMBERS + copies(), one__sql=ONE)
    run = Watched(live)
    # What a run that is restarted in the place of each edit derives.
    other = tmp_path / "other"
    other.mkdir()
    world = World(other / "data", load(write_catalog(other, NUMBERS + copies(), one__sql=ONE)), wall=10**15)

    def both(text: str, script: str = ONE) -> None:
        run.ingest()
        world.catalog = load(write_catalog(other, text, one__sql=script))
        world.ingest("w/numbers", [{"id": n, "n": n} for n in (run.count - 2, run.count - 1)], clock=None)
        world.wall += 5_000_000
        world.step(shards=1)
        for name in world.catalog.derivations:
            run.wait_for_documents(name, len(world.rows(name)))
            assert run.documents(name) == sorted(row[3] for row in world.rows(name))

    try:
        run.wait_for_text("running 1 task")
        both(NUMBERS + copies())
        run.edit(NUMBERS + copies() + copies("again", "copies"), "flow.yaml changed: w/again starts, 1 task continues")
        both(NUMBERS + copies() + copies("again", "copies"))
        run.edit(TEN, "one.sql changed: w/copies, w/again restart, 0 tasks continue", name="one.sql")
        assert "the lambda of 'from' was edited" in run.told.read_text()
        both(NUMBERS + copies() + copies("again", "copies"), TEN)

        run.edit(
            NUMBERS + "  w/copies: [", "flow.yaml changed, but the catalog has errors: all tasks continue unchanged"
        )
        assert f"{live / 'flow.yaml'}:" in run.told.read_text()
        (live / "flow.yaml").write_text(NUMBERS + copies() + copies("again", "copies"))
        run.wait_for_text("flow.yaml changed: 2 tasks continue")
        both(NUMBERS + copies() + copies("again", "copies"), TEN)

        # What is derived does not fit the schema any more: one task fails, and the other goes on.
        run.edit(NUMBERS + copies() + copies("again", "copies", kind="string"), "w/again restarts, 1 task continues")
        run.ingest()
        run.wait_for(lambda: run.error_of("w/again"))
        run.wait_for_documents("w/copies", 10)
        run.edit(NUMBERS + copies() + STORED, "w/stored starts, w/again stops, 1 task continues")
        run.wait_for((live / "stored.db").exists)
        assert run.stop() == 0
    finally:
        run.process.kill()
        run.process.wait()


def test_run_killed_while_applying_an_edit_continues(tmp_path: Path) -> None:
    write_catalog(tmp_path, NUMBERS + copies(), one__sql=ONE)
    run = Watched(tmp_path)
    try:
        for turn in range(3):
            run.wait_for_starts(turn + 1)
            run.ingest()
            text = NUMBERS + copies() + "".join(copies(f"more-{n}", "numbers") for n in range(turn + 1))
            (tmp_path / "flow.yaml").write_text(text)
            if turn == 1:
                run.wait_for(lambda: run.shards("w/more-1"))
            elif turn == 2:
                run.wait_for_text("w/more-2 starts")
            assert run.stop(signal.SIGKILL) == -signal.SIGKILL
            run.process = run.start()
        run.wait_for_text("running 4 tasks")
        for name in ("copies", "more-0", "more-1", "more-2"):
            run.wait_for_documents(f"w/{name}", 6)
            assert run.documents(f"w/{name}") == sorted(f'{{"id":{n},"n":{n + 1}}}' for n in range(6))
        assert run.stop() == 0
    finally:
        run.process.kill()
        run.process.wait()


@pytest.mark.torture  # test_edit_kills.py resets and splits beside a run
def test_watching_run_applies_resets_and_splits(tmp_path: Path) -> None:
    write_catalog(tmp_path, NUMBERS + copies() + copies("again", "copies") + STORED, one__sql=ONE)
    run = Watched(tmp_path)

    def go_on() -> None:
        """Two more documents come, and all that follows from all of them is there."""
        run.ingest()
        expected = [(number, number + 1) for number in range(run.count)]
        run.wait_for_documents("w/copies", run.count)
        run.wait_for_documents("w/again", run.count)
        assert run.documents("w/copies") == sorted(f'{{"id":{id_},"n":{n}}}' for id_, n in expected)
        assert run.documents("w/again") == sorted(f'{{"id":{id_},"n":{n + 1}}}' for id_, n in expected)
        run.wait_for(lambda: run.stored() == expected)

    try:
        run.wait_for_text("running 3 tasks")
        go_on()
        run.flowctl("split", "--task", "w/copies")
        run.wait_for_text("w/copies was split: w/copies restarts, 2 tasks continue")
        assert (run.shards("w/copies"), run.shards("w/again")) == (2, 1)
        go_on()
        told = run.flowctl("reset", "--task", "w/again")
        assert told == "w/again starts over with the next run, or in a running 'flowctl run --watch'\n"
        run.wait_for_text("w/again was reset: w/again restarts, 2 tasks continue")
        go_on()
        run.flowctl("split", "--task", "w/stored")
        run.wait_for_text("w/stored was split: w/stored restarts, 2 tasks continue")
        run.flowctl("reset", "--task", "w/copies", "--cascade")
        run.wait_for_text("w/copies was reset, w/again was reset, w/stored was reset: ")
        go_on()  # each task restarts at once, or after its running transactions
        run.flowctl("reset", "--task", "w/again")  # while the tasks restart
        run.flowctl("split", "--task", "w/stored")
        go_on()
        assert run.shards("w/stored") == 2  # its reset began with one shard
        assert run.stop() == 0
    finally:
        run.process.kill()
        run.process.wait()


def test_second_run_fences_the_first_which_reports_it_and_ends(tmp_path: Path) -> None:
    write_catalog(tmp_path, NUMBERS + copies() + copies("again", "copies"), one__sql=ONE)
    runs = [Watched(tmp_path, "first")]
    try:
        runs[0].wait_for_text("running 2 tasks")
        runs[0].ingest()
        runs[0].wait_for_documents("w/again", 2)
        runs.append(Watched(tmp_path, "second"))
        assert runs[0].process.wait(PATIENCE_SECONDS) == 1
        assert f":{runs[1].process.pid}) runs 'w/copies' now, so this run ends" in runs[0].told.read_text()
        runs[1].wait_for_text(f"continues 2 tasks of another flowctl run ({platform.node()}:{runs[0].process.pid})")
        runs[1].count = 2
        runs[1].ingest()
        runs[1].wait_for_documents("w/again", 4)
        runs[1].flowctl("reset", "--task", "w/again")
        runs[1].wait_for_text("w/again was reset: w/again restarts")
        runs[1].wait_for_documents("w/again", 4)
        assert runs[1].stop() == 0
    finally:
        for run in runs:
            run.process.kill()
            run.process.wait()


def test_task_of_another_run_is_not_taken_over_until_that_run_ends(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, name in zip(folders, ("copies", "again"), strict=True):
        folder.mkdir()
        write_catalog(folder, NUMBERS + copies(name), one__sql=ONE)
    runs = [Watched(folder, data="../.flow") for folder in folders]
    first, second = runs
    try:
        for run in runs:
            run.wait_for_text("running 1 task")
        first.edit(NUMBERS + copies() + copies("again") + copies("more"), "w/more starts, 1 task continues")
        first.wait_for_text(f":{second.process.pid}); this run starts it once that process has ended")
        first.ingest()
        for name in ("w/copies", "w/again", "w/more"):
            first.wait_for_documents(name, 2)
        assert second.process.poll() is None
        assert second.stop() == 0
        first.wait_for_text("w/again is free: w/again starts, 2 tasks continue")
        first.ingest()
        first.wait_for_documents("w/again", 4)
        assert first.stop() == 0
    finally:
        for run in runs:
            run.process.kill()
            run.process.wait()


def test_watch_option_excludes_until_idle(tmp_path: Path) -> None:
    status, _, err = flowctl(tmp_path, "run", "--watch", "--until-idle")
    assert status == 2
    assert "--watch runs until it is stopped" in err
