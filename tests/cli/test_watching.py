"""A catalog edited under a `flowctl run --watch`, as a real process: what it derives is what restarts would derive."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from conftest import World, write_catalog

from derive.catalog import load
from derive.storage.contents import ReadOptions, read_rows
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

FLOWCTL = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"
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

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, folder / "told"
        self.process = self.start()
        self.count = 0

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", FLOWCTL, "run", "--watch", "--shards", "1"]
        with self.told.open("ab") as told:
            return subprocess.Popen([*command, "--source", str(self.folder / "flow.yaml")], stderr=told)

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
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
        store = Store(self.folder / ".flow")
        documents = [{"id": number, "n": number} for number in (self.count, self.count + 1)]
        self.count += 2
        spec = load(self.folder / "flow.yaml").collections["w/numbers"]
        Ingestion(store, spec, clock=None).load("test", enumerate(documents, start=1))
        store.close()

    def documents(self, name: str) -> list[str]:
        store = Store(self.folder / ".flow", reading=True)
        spec = load(self.folder / "flow.yaml").collections[name]
        rows = [row[3] for part in read_rows(store, spec, ReadOptions()) for row in part.tuples()]
        store.close()
        return sorted(rows)

    def wait_for_documents(self, name: str, count: int) -> None:
        self.wait_for(lambda: len(self.documents(name)) == count)

    def error_of(self, name: str) -> str | None:
        store = Store(self.folder / ".flow", reading=True)
        state = store.task(name)
        store.close()
        return state.error if state else None

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return self.process.wait(60)


ONE, TEN = "SELECT $id, $n + 1 AS n;", "SELECT $id, $n + 10 AS n;"


def test_edits_are_applied_under_a_run(tmp_path: Path) -> None:
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
        run.edit(NUMBERS + copies() + copies("again", "copies"), "flow.yaml changed: w/again starts, 1 task goes on")
        both(NUMBERS + copies() + copies("again", "copies"))
        run.edit(TEN, "one.sql changed: w/copies, w/again restart, 0 tasks go on", name="one.sql")
        assert "the lambda of 'from' was edited" in run.told.read_text()
        both(NUMBERS + copies() + copies("again", "copies"), TEN)

        run.edit(NUMBERS + "  w/copies: [", "flow.yaml changed, and is wrong: what runs goes on unchanged")
        assert f"{live / 'flow.yaml'}:" in run.told.read_text()
        (live / "flow.yaml").write_text(NUMBERS + copies() + copies("again", "copies"))
        run.wait_for_text("flow.yaml changed: 2 tasks go on")
        both(NUMBERS + copies() + copies("again", "copies"), TEN)

        # What is derived does not fit the schema any more: one task fails, and the other goes on.
        run.edit(NUMBERS + copies() + copies("again", "copies", kind="string"), "w/again restarts, 1 task goes on")
        run.ingest()
        run.wait_for(lambda: run.error_of("w/again"))
        run.wait_for_documents("w/copies", 10)
        run.edit(NUMBERS + copies() + STORED, "w/stored starts, w/again stops, 1 task goes on")
        run.wait_for((live / "stored.db").exists)
        assert run.stop() == 0
    finally:
        run.process.kill()
        run.process.wait()


def test_a_run_that_is_killed_while_it_applies_an_edit_goes_on(tmp_path: Path) -> None:
    write_catalog(tmp_path, NUMBERS + copies(), one__sql=ONE)
    run = Watched(tmp_path)
    try:
        for turn in range(3):
            run.wait_for_starts(turn + 1)
            run.ingest()
            text = NUMBERS + copies() + "".join(copies(f"more-{n}", "numbers") for n in range(turn + 1))
            (tmp_path / "flow.yaml").write_text(text)
            time.sleep(0.45 + 0.1 * turn)  # about when it is applied
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


def test_watching_has_no_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FLOWCTL, "run", "--watch", "--until-idle", "--source", str(tmp_path / "flow.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--watch goes on until it is stopped" in done.stderr
