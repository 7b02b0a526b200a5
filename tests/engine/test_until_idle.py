"""Cycles of derivations, and when a run that ends once it is idle is idle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import World, write_catalog
from failing_executor import FailsFirst

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.inputs import find_blamed
from derive.engine.task_reconciler import open_run

LOOP = """
collections:
  r/numbers: &numbers {schema: {type: object, required: [n, at], properties: {n: {type: integer}, at: {type: string}}}, key: [/n]}
  r/ping:
    <<: *numbers
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: begin, source: r/numbers, shuffle: any, lambda: "SELECT $n, $at;"}
        - {name: back, source: r/pong, shuffle: any, lambda: "SELECT $n - 1 AS n, $at WHERE $n > 0;"}
  r/pong:
    <<: *numbers
    derive:
      using: {sqlite: {}}
      transforms: [{name: return, source: r/ping, shuffle: any, lambda: "SELECT $n - 1 AS n, $at WHERE $n > 0;"}]
  r/both:
    <<: *numbers
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: pongs, source: r/pong, shuffle: any, lambda: "SELECT $n, $at;"}
        - {name: numbers, source: r/numbers, shuffle: any, lambda: "SELECT $n + 100 AS n, $at;"}
"""


def loop_of(folder: Path, text: str = LOOP) -> World:
    world = World(folder / "data", load(write_catalog(folder, text)), wall=BASE + 60_000_000)
    if world.store.collection("r/numbers") is None:
        world.ingest("r/numbers", [{"n": n, "at": format_rfc3339(BASE + n * 700_000)} for n in range(5)])
    return world


BASE = 1_700_000_000_000_000


@pytest.mark.parametrize(
    "without",
    [lambda text: text.replace("using: {sqlite: {}}", "using: {sqlite: {}}\n      shards: {disable: true}", 1), None],
)
def test_tasks_of_a_cycle_do_not_run_ahead(tmp_path: Path, without: Callable[[str], str] | None) -> None:
    """Wherever it is disabled or left out, what it derives later has earlier clocks than the present."""
    (tmp_path / "whole").mkdir()
    whole = loop_of(tmp_path / "whole")
    whole.step()

    if without is None:
        part = loop_of(tmp_path)
        for name in ("r/pong", "r/ping"):
            run = open_run(part.catalog, part.store, InProcessExecutor(), tasks=[name])
            run.step()
            run.close()
    else:
        part = loop_of(tmp_path, without(LOOP))
        part.step()
        part = loop_of(tmp_path)
    part.step()

    assert len(whole.rows("r/ping")) > 5
    assert part.digest() == whole.digest()


def test_until_idle_ends_if_other_tasks_are_stopped(tmp_path: Path) -> None:
    world = loop_of(tmp_path)
    run = open_run(world.catalog, world.store, InProcessExecutor(), tasks=["r/both"])
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        assert len(naps) < 5, "it waits for ever"

    waiting = run.until_idle(sleep=nap)
    run.close()

    assert [(each.transform, each.documents, each.behind) for each in waiting] == [("numbers", 5, "r/pong")]


def test_until_idle_does_not_wait_for_later_documents(tmp_path: Path) -> None:
    world = loop_of(tmp_path)
    run = world.run()
    later = [{"n": 9, "at": format_rfc3339(world.wall + 30_000_000)}]

    def never(seconds: float) -> None:
        raise AssertionError("it sleeps")

    def step() -> bool:
        moved = run.step()
        if later:
            world.ingest("r/numbers", [later.pop()])
        return moved

    waiting = run.until_idle(step, sleep=never)
    run.close()

    assert {(each.task, each.transform, each.documents, each.behind) for each in waiting} == {
        ("r/ping", "begin", 1, None),
        ("r/both", "numbers", 1, None),
    }


OTHERS = """
collections:
  r/ping: {schema: {type: object, required: [n, at], properties: {n: {type: integer}, at: {type: string}}}, key: [/n]}
  r/copies:
    schema: {type: object, required: [n], properties: {n: {type: integer}}}
    key: [/n]
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 30s}
      transforms: [{name: copy, source: r/ping, shuffle: any, lambda: SELECT $n}]
"""


def test_until_idle_ends_if_a_run_of_another_catalog_has_failed(tmp_path: Path) -> None:
    """It has failed, and keeps the right to write what it derives."""
    world = loop_of(tmp_path)
    executor = FailsFirst(times=0)
    failing = world.run(executor)
    for number in (9, 8):
        world.wall += 2_000_000
        world.ingest("r/numbers", [{"n": number, "at": format_rfc3339(world.wall - 1_500_000)}])
        failing.step()
        executor.times = 2  # jointly, and then by itself
    (tmp_path / "other").mkdir()
    other = World(world.root, load(write_catalog(tmp_path / "other", OTHERS)), wall=world.wall + 60_000_000)
    run = other.run()
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        assert len(naps) < 5, "it waits for ever"

    run.until_idle(sleep=nap)

    assert [name for name, task in failing.tasks.items() if task.error] == ["r/ping"]
    run.close()
    failing.close()


# The tasks that documents wait for.


SOURCES = {"b": ["a"], "c": ["b", "x"], "d": ["c"], "x": ["root"]}


@pytest.mark.parametrize(
    ("stopped", "expected"),
    [
        ([], {}),
        (["a"], {"a": "a", "b": "a", "c": "a", "d": "a"}),
        (["b"], {"b": "b", "c": "b", "d": "b"}),
        (["x"], {"x": "x", "c": "x", "d": "x"}),
        (["a", "c"], {"a": "a", "b": "a", "c": "c", "d": "c"}),  # who has failed is to blame, whatever came before
        (["root", "d"], {"root": "root", "d": "d", "x": "root", "c": "root"}),
    ],
)
def test_waiting_tasks_name_the_stopped_task_they_wait_for(stopped: list[str], expected: dict[str, str]) -> None:
    assert find_blamed(stopped, SOURCES) == expected


def test_waiting_tasks_of_a_cycle_name_the_same_stopped_task() -> None:
    assert find_blamed(["a"], {"ping": ["pong", "a"], "pong": ["ping"]}) == {"a": "a", "ping": "a", "pong": "a"}
