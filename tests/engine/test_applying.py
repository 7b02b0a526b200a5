"""A catalog edited under a run: what is derived has the bytes of runs that were restarted in the place of each edit."""

from __future__ import annotations

import tempfile
import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from conftest import World, examples
from edited_catalogs import BASE, HEAD, Waits, catalog_of, changing, go_on, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS

from derive.engine.reset import SPLIT, reset
from derive.engine.scheduler import Scheduler
from derive.engine.task_reconciler import Change, is_same_definition, open_changing_run
from derive.errors import FencedError, StorageError

TWO = (("copies", "numbers", 1), ("again", "copies", 10))


def test_only_changed_tasks_start_over(tmp_path: Path) -> None:
    world = World(tmp_path / "data", catalog_of(tmp_path, text_of(*TWO)), wall=BASE)
    run, reconciler = changing(world)
    before = dict(run.tasks)

    moved = catalog_of(tmp_path, text_of(*TWO, above=3))
    assert reconciler.affected(run, moved) == []
    assert reconciler.apply(run, moved) == Change(kept=("a/copies", "a/again"))
    assert run.tasks == before
    position = run.tasks["a/copies"].spec.inputs[0].position
    assert position == moved.derivations["a/copies"].inputs[0].position

    edited = catalog_of(tmp_path, text_of(TWO[0], ("again", "copies", 20), ("third", "numbers", 0)))
    assert reconciler.affected(run, edited) == [("a/again",)]
    assert reconciler.apply(run, edited) == Change(kept=("a/copies",), restarted=("a/again",), started=("a/third",))
    gone = catalog_of(tmp_path, text_of(("again", "numbers", 20)))
    assert reconciler.apply(run, gone) == Change(restarted=("a/again",), stopped=("a/copies", "a/third"))
    assert not world.store.task_capabilities.is_running("a/copies")
    assert world.store.task_capabilities.is_running("a/again")


def test_task_with_a_wrong_key_stops_alone_until_it_is_corrected(tmp_path: Path) -> None:
    world = World(tmp_path / "data", catalog_of(tmp_path, text_of(*TWO)), wall=BASE)
    run, reconciler = changing(world)
    go_on(world, 0)
    run.step()

    again = text_of(TWO[1], key="n, /times").removeprefix(HEAD).replace("required: [n]", "required: [n, times]")
    wrong = text_of(TWO[0]) + again.replace(", reduce: {strategy: sum}", "")
    reconciler.apply(run, catalog_of(tmp_path, wrong))
    go_on(world, 1)
    run.step()
    error = run.tasks["a/again"].error
    assert isinstance(error, StorageError)
    assert "key" in error.message
    assert world.task("a/again").error is not None
    assert len(world.rows("a/copies")) == 10

    reconciler.apply(run, catalog_of(tmp_path, text_of(*TWO)))
    run.step()
    assert run.tasks["a/again"].error is None
    assert len(world.rows("a/again")) == 10


def test_runs_of_different_catalogs_fence_by_epoch(tmp_path: Path) -> None:
    one = World(tmp_path / "data", catalog_of(tmp_path, text_of(TWO[0])), wall=BASE)
    two = World(tmp_path / "data", catalog_of(tmp_path, text_of(("other", "numbers", 5))), wall=BASE)
    first, _ = changing(one)
    second, reconciler = changing(two)
    go_on(one, 0)
    two.wall = one.wall
    first.step()
    second.step()
    assert (len(one.rows("a/copies")), len(two.rows("a/other"))) == (5, 5)

    reconciler.apply(second, catalog_of(tmp_path, text_of(TWO[0], ("other", "numbers", 5))))
    go_on(one, 1)
    two.wall = one.wall
    with pytest.raises(FencedError, match="another flowctl runs 'a/copies'"):
        first.step()
    second.step()
    assert len(one.rows("a/copies")) == 10


def test_a_task_is_changed_between_transactions_while_others_continue(tmp_path: Path) -> None:
    three = (*TWO, ("third", "numbers", 3))
    world = World(tmp_path / "data", catalog_of(tmp_path, text_of(*three)), wall=BASE)
    executor = Waits()
    run, reconciler = open_changing_run(world.catalog, world.store, executor, shards=1)
    edited = catalog_of(tmp_path, text_of(("copies", "numbers", 2), *three[1:]))
    go_on(world, 0)
    with Scheduler(run, threads=4) as scheduler:
        scheduler.look()
        assert executor.begun.wait(PATIENCE_SECONDS)
        # What reads it is defined by its schema, which is the same: it goes on.
        assert scheduler.hold(reconciler.affected(run, edited)) == [("a/copies",)]
        third = threading.Event()
        for _ in range(600):
            if len(world.rows("a/third")) == 5:
                break
            third.wait(0.1)
        assert len(world.rows("a/third")) == 5
        executor.go_on.set()
        for _ in range(600):
            if not scheduler.hold(reconciler.affected(run, edited)):
                break
            third.wait(0.1)
        change = reconciler.apply(run, edited)
        scheduler.adopt()
        go_on(world, 1)
        scheduler.step()
    assert change == Change(kept=("a/again", "a/third"), restarted=("a/copies",))
    assert sorted(row[3] for row in world.rows("a/copies")) == sorted(
        f'{{"n":{n + added},"times":1}}' for n in range(5) for added in (1, 2)
    )


names = st.sampled_from(["copies", "again", "third"])
derived = st.dictionaries(names, st.tuples(st.sampled_from(["numbers", "copies", "again"]), st.integers(0, 2)))
edits = st.lists(st.tuples(derived, st.integers(0, 2)), min_size=1, max_size=5)


@settings(max_examples=examples(40, 6))
@given(edits=edits, is_accepted=st.booleans())
def test_edits_during_a_run_publish_the_same_as_restarts(
    edits: list[tuple[dict[str, tuple[str, int]], int]], is_accepted: bool
) -> None:
    """Derivations may read one another, and themselves; what is read and not derived is not a collection."""
    texts = []
    for chosen, above in edits:
        known = {"numbers", *chosen}
        parts = [(name, source, added + 100) for name, (source, added) in chosen.items() if source in known]
        left = {"numbers", *(name for name, _, _ in parts)}
        parts = [part if part[1] in left else (part[0], "numbers", part[2]) for part in parts]
        texts.append(text_of(*parts, above=above))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        live = World(folder / "live", catalog_of(folder, texts[0]), wall=BASE)
        restarted = World(folder / "restarted", live.catalog, wall=BASE)
        run, reconciler = changing(live)
        for batch, text in enumerate(texts):
            catalog = catalog_of(folder, text)
            live.catalog = restarted.catalog = catalog
            accepted = list(catalog.tasks) if is_accepted else []
            reconciler.accept(accepted)
            reconciler.apply(run, catalog)
            other = restarted.run(shards=1, accepted=accepted)
            for world, work in ((live, run), (restarted, other)):
                go_on(world, batch)
                work.step()
            other.close()
            assert {name: live.rows(name) for name in catalog.collections} == {
                name: restarted.rows(name) for name in catalog.collections
            }
            errors = [str(task.error) for task in run.tasks.values()]
            assert errors == [str(task.error) for task in other.tasks.values()]
            assert errors == ["None"] * len(errors) or not is_accepted
        live.store.close()
        restarted.store.close()


def test_superseding_runs_are_distinguished_from_resets(tmp_path: Path) -> None:
    world = World(tmp_path / "data", catalog_of(tmp_path, text_of(*TWO)), wall=BASE)
    run, reconciler = changing(world)
    assert reconciler.find_superseded(run) == {}
    reset(world.catalog, world.store, ["a/again"])
    assert reconciler.find_superseded(run) == {"a/again": "was reset"}

    world.store.acquire_task("a/again", 1, ["a/again"], purpose=SPLIT)
    with closing(apsw.Connection(str(world.root / "metadata.db"))) as database:
        database.execute("UPDATE capability SET holder = 'elsewhere:7:x:1' WHERE task = 'a/again'")
        assert reconciler.find_superseded(run) is None
        database.execute("UPDATE capability SET purpose = NULL WHERE task = 'a/again'")
    with pytest.raises(FencedError, match=r"another flowctl run \(elsewhere:7\) runs 'a/again' now, so this run ends"):
        reconciler.find_superseded(run)
    with pytest.raises(FencedError, match="another flowctl runs 'a/again'"):  # it came after the last look
        reconciler.apply(run, world.catalog)
    runner = world.store.task_capabilities.runs(["a/again"]).get("a/again")
    assert runner is not None
    assert runner.process.startswith("elsewhere:7")

    run.tasks["a/copies"].error = FencedError("another endpoint has it")
    world.store.reset(["a/again"])
    assert reconciler.find_superseded(run) == {"a/again": "was reset"}
    reconciler.apply(run, world.catalog)
    run.tasks["a/copies"].error = FencedError("another endpoint has it")
    with pytest.raises(FencedError, match="another endpoint has it"):
        reconciler.find_superseded(run)


def test_task_reset_during_its_transaction_stops_alone(tmp_path: Path) -> None:
    world = World(tmp_path / "data", catalog_of(tmp_path, text_of(*TWO)), wall=BASE)
    executor = Waits()
    run, reconciler = open_changing_run(world.catalog, world.store, executor, shards=1)
    run.is_mended = True
    go_on(world, 0)
    with Scheduler(run, threads=4) as scheduler:
        scheduler.look()
        assert executor.begun.wait(PATIENCE_SECONDS)
        reset(world.catalog, world.store, ["a/copies"], cascade=True)
        assert reconciler.find_superseded(run) == {"a/copies": "was reset", "a/again": "was reset"}
        assert ("a/copies",) in scheduler.hold(reconciler.affected(run, world.catalog))  # `a/again` may be looking
        executor.go_on.set()
        pause = threading.Event()
        while scheduler.hold(reconciler.affected(run, world.catalog)):
            pause.wait(0.1)
        assert isinstance(run.tasks["a/copies"].error, FencedError)
        assert reconciler.apply(run, world.catalog) == Change(restarted=("a/copies", "a/again"))
        scheduler.adopt()
        scheduler.step()
    assert len(world.rows("a/again")) == 5


def test_definitions_do_not_depend_on_line_numbers(tmp_path: Path) -> None:
    here, below = (catalog_of(tmp_path, text_of(*TWO, above=above)) for above in (0, 5))
    other = catalog_of(tmp_path, text_of(("copies", "numbers", 2), TWO[1]))
    same = [is_same_definition(here.tasks[name], below.tasks[name]) for name in here.tasks]
    differ = [is_same_definition(here.tasks[name], other.tasks[name]) for name in here.tasks]
    assert (same, differ) == ([True, True], [False, True])
