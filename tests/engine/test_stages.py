"""An edit in stages: what a transaction under way has nothing to do with does not wait for its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import World
from edited_catalogs import BASE, Waits, catalog_of, go_on, text_of
from patience import PATIENCE_SECONDS, wait_until
from watched_edit import Edits

from derive.cli.applying import AcceptanceQuestions, Applying
from derive.engine.edits import find_wait
from derive.engine.scheduler import Scheduler
from derive.engine.task_reconciler import find_waiting, open_changing_run, stage

COPIES = ("copies", "numbers", 1)
STORED = """
materializations:
  a/NAME:
    endpoint: {connector: {image: materialize-sqlite, config: {path: PATH.db}}}
    bindings: [{source: a/SOURCE, resource: {table: numbers}}]
"""


def stored(name: str, path: str, source: str = "numbers") -> str:
    return STORED.replace("NAME", name).replace("PATH", path).replace("SOURCE", source)


@pytest.mark.parametrize(
    ("present", "edited", "waiting"),
    [
        pytest.param(text_of(COPIES), text_of(("copies", "numbers", 2), ("new", "numbers", 3)), "copies", id="alone"),
        pytest.param(text_of(COPIES), text_of(("copies", "numbers", 2), ("new", "copies", 3)), "copies", id="reader"),
        pytest.param(
            text_of(COPIES, ("old", "copies", 1)),
            text_of(("copies", "numbers", 2), ("old", "copies", 1), ("new", "copies", 3)).replace(
                "n: {type: integer}, times", "n: {type: integer, minimum: 0}, times"
            ),
            "copies new old",
            id="readers of another schema",
        ),
        pytest.param(text_of(COPIES), text_of(("new", "numbers", 3)), "copies", id="renamed"),
        pytest.param(
            text_of(("copies", "again", 1), ("again", "copies", 1)),
            text_of(("copies", "numbers", 1), ("again", "numbers", 2), ("new", "numbers", 3)),
            "again copies",
            id="cycle that was",
        ),
        pytest.param(
            text_of(COPIES),
            text_of(("copies", "new", 1), ("new", "copies", 1), ("other", "numbers", 3)),
            "copies new",
            id="cycle that comes",
        ),
        pytest.param(
            text_of(("copies", "other", 1), ("other", "numbers", 1)),
            text_of(("copies", "numbers", 1), ("other", "copies", 1), ("third", "copies", 3)),
            "copies other",
            id="cycle of what was with what comes",
        ),
        pytest.param(
            text_of(COPIES) + stored("busy", "a"),
            text_of(COPIES) + stored("new", "a") + stored("other", "b").removeprefix("\nmaterializations:"),
            "busy new",
            id="endpoint",
        ),
    ],
)
def test_edits_wait_for_transactions_of_affected_tasks(tmp_path: Path, present: str, edited: str, waiting: str) -> None:
    before, after = (catalog_of(tmp_path, text) for text in (present, edited))
    names = find_waiting(before, after, {"a/busy" if "a/busy" in before.tasks else "a/copies"})
    assert sorted(names) == [f"a/{name}" for name in waiting.split()]
    mixed = stage(before, after, names)
    assert {name: mixed.tasks[name] for name in names if name in mixed.tasks} == {
        name: before.tasks[name] for name in names if name in before.tasks
    }
    assert {name: spec for name, spec in mixed.tasks.items() if name not in names} == {
        name: spec for name, spec in after.tasks.items() if name not in names
    }
    assert all(names.issuperset(cycle) or names.isdisjoint(cycle) for cycle in mixed.cycles)
    assert sorted(name for cycle in mixed.cycles for name in cycle) == sorted(mixed.derivations)


def test_new_task_starts_while_a_changed_task_is_in_a_transaction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path / "data", catalog_of(tmp_path, text_of(COPIES, ("gone", "numbers", 1))), wall=BASE)
    executor, watch = Waits(), Edits()
    run, reconciler = open_changing_run(world.catalog, world.store, executor, shards=1)
    applying = Applying(run, reconciler, watch, AcceptanceQuestions(run.tasks, wake=lambda: None))
    go_on(world, 0)
    with Scheduler(run, threads=4) as scheduler:
        scheduler.look()
        assert executor.begun.wait(PATIENCE_SECONDS)
        wait_until(lambda: len(world.rows("a/gone")) == 5)
        edited = catalog_of(tmp_path, text_of(("copies", "numbers", 2), ("new", "numbers", 3), ("late", "copies", 0)))
        world.catalog = replace(edited, collections={**world.catalog.collections, **edited.collections})
        watch.next = edited
        assert applying.advance(scheduler)
        assert applying.advance(scheduler)
        scheduler.look()
        wait_until(lambda: len(world.rows("a/new")) == 5)
        assert capsys.readouterr().err == (
            "flow.yaml changed: a/new, a/late start, a/gone stops, a/copies waits for running transactions to end,"
            " 0 tasks continue\n"
        )
        assert world.rows("a/copies") == []
        wait = find_wait(world.root, "a/copies")
        assert wait is not None
        assert wait.tasks == ("a/copies",)
        assert find_wait(world.root, "a/new") is None
        assert not world.store.task_capabilities.is_running("a/gone")

        executor.go_on.set()
        wait_until(lambda: not applying.advance(scheduler))
        assert find_wait(world.root, "a/copies") is None
        assert "flow.yaml changed: a/copies restarts, 2 tasks continue\n" in capsys.readouterr().err
        go_on(world, 1)
        scheduler.step()
    ones = [f'{{"n":{n + added},"times":1}}' for added in (1, 2) for n in range(5)]
    assert sorted(row[3] for row in world.rows("a/copies")) == sorted(ones)
    assert len(world.rows("a/late")) == 10
