"""Shadows: an edited group is derived from history beside the live one, and replaces it at one time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest
from conftest import World
from edited_catalogs import SECOND, catalog_of
from shadowed import CHAIN, EDITED, Scene, Shadowed
from stateful_catalogs import Derived, text_of

from derive.algebra.bounds import ColumnBounds
from derive.backup import back_up
from derive.cli.shadowing import Shadowing
from derive.contents.reads import ReadOptions, read_rows, subscribe_at
from derive.contents.reduced import differing_documents, reduced_documents
from derive.contents.reduced_input import ReducedInput
from derive.contents.rows import contents_at, rows_of_share, shares_at
from derive.engine.reset import reset, split
from derive.engine.shadow import drop_shadows, find_group, require_no_shadow
from derive.engine.swapping import swap_group
from derive.errors import FencedError, FrontierError, LostError, UsageError
from derive.protocol.specs import CatalogSpec
from derive.relations.columns import columns_of
from derive.restore import restore
from derive.spark.executor import SparkExecutor
from derive.storage.compaction import compact

THIRD = {"copies": Derived("numbers", 2, "another"), "again": Derived("copies", 3)}
MEMBERS = ("a/copies", "a/again")


def contents(world: World, name: str, at: int, catalog: CatalogSpec | None = None) -> list[tuple[bytes, str]]:
    options = ReadOptions(as_of=at)
    parts = reduced_documents(world.store, (catalog or world.catalog).collections[name], options)
    return [(key, text) for part in parts for _, _, key, text in part.tuples()]


def test_shadow_is_continued_by_another_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    first = scene.shadow(is_held=True)
    first.run.step()
    first.run.close()
    scene.ingest()
    second = scene.shadow()
    assert scene.world.task("a/copies@2").documents_in == 6
    second.swap()
    scene.check()


def test_two_swaps_give_three_versions(tmp_path: Path) -> None:
    scene = Scene(tmp_path, shards=2)
    world, first = scene.world, scene.world.catalog
    times = []
    for defined in (EDITED, THIRD):
        before = contents(world, "a/again", world.store.upper("a/again") - 1)
        shadowed = scene.shadow(defined)
        at = shadowed.swap()
        times.append((at, before))
        scene.go_on()
    for at, before in times:
        assert contents(world, "a/again", at - 1, first) == before
    assert world.digest() == scene.fresh(shadowed.edited).digest()
    folders = sorted(path.name for path in (world.root / "state" / "a").iterdir())
    assert folders == ["again@3@", "copies@3@"]


def test_state_of_a_swapped_task_can_be_split_and_reset(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    shadowed = scene.shadow()
    shadowed.swap()
    split(scene.world.store, "a/copies")
    scene.check()
    reset(shadowed.edited, scene.world.store, ["a/copies"], cascade=True)
    assert not (scene.world.root / "state" / "a" / "copies@2@").exists()
    scene.check()
    assert scene.world.store.history.versions("a/copies") == []


def test_held_shadow_swaps_when_it_is_let(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    shadowed = scene.shadow(is_held=True)
    shadowing = Shadowing(scene.world.store, shadowed.run, shadowed.reconciler, shadowed.group, ())
    assert not shadowed.meet()
    assert shadowed.swapping.is_met
    shadowed.run.close()
    assert swap_group(scene.world.store, shadowed.group) is None
    scene.world.store.shadows.let_swap()
    assert swap_group(scene.world.store, shadowed.group) is not None
    with pytest.raises(UsageError, match="another process has brought the new version into force"):
        shadowing.require_shadow()
    scene.world.catalog = shadowed.edited
    scene.check()


def test_shadow_has_as_many_shards_as_the_live_derivation(tmp_path: Path) -> None:
    scene = Scene(tmp_path, shards=3)
    edited = catalog_of(tmp_path, text_of(EDITED))
    Shadowed(scene.world, edited, None, is_held=False).swap()
    assert scene.world.task("a/copies").shards == 3
    scene.check()


def test_dropped_shadow_leaves_the_live_version(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    catalog, before = scene.world.catalog, scene.world.digest()
    shadowed = scene.shadow(is_held=True)
    shadowed.meet()
    shadowed.run.close()
    with pytest.raises(UsageError, match=r"a shadow of a/again, a/copies is being derived"):
        require_no_shadow(scene.world.store.shadows.members(), catalog.tasks)
    assert drop_shadows(scene.world.store) == ["a/again@2", "a/copies@2"]
    scene.world.catalog = catalog
    assert scene.world.digest() == before
    assert scene.world.store.shadows.members() == []
    assert scene.world.store.collection("a/copies@2") is None
    assert not list((scene.world.root / "collections").rglob("*@2@/*"))
    scene.check()
    scene.shadow().swap()


def test_failing_shadow_leaves_the_live_version_running(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    catalog = scene.world.catalog
    text = text_of(EDITED).replace("SELECT $n + 101", "SELECT json('[') + $n + 101")
    shadowed = Shadowed(scene.world, catalog_of(tmp_path, text), 1, is_held=False)
    assert not shadowed.meet()
    assert set(shadowed.errors()) == {"a/copies@2"}
    scene.ingest()
    assert not shadowed.meet()
    shadowed.run.close()
    scene.world.catalog = catalog
    assert scene.world.digest() == scene.fresh(catalog).digest()


def test_reader_of_a_failed_live_derivation_is_replaced(tmp_path: Path) -> None:
    """It never reaches the time of a member that goes on, so the swap does not wait for it."""
    defined = {**CHAIN, "third": Derived("numbers", 0)}
    scene = Scene(tmp_path, catalog_of(tmp_path, text_of(defined)))
    wrong = text_of(defined).replace("SELECT $n + 100", "SELECT json(iif($id > 8, '[', '1')) + $n + 99", 1)
    scene.world.catalog = catalog_of(tmp_path, wrong)
    scene.go_on()
    scene.ingest()
    with pytest.raises(Exception, match="malformed JSON"):
        scene.world.step(shards=1)
    at = scene.shadow({**EDITED, "third": Derived("numbers", 1)}).swap()
    assert scene.world.store.upper("a/again") == at
    scene.check()


def test_another_edit_is_refused_while_a_shadow_is_derived(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.shadow().run.close()
    with pytest.raises(UsageError, match="the catalog was edited since the shadow began"):
        scene.shadow(THIRD)


def test_followers_end_where_the_version_ends(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    spec, store = scene.world.catalog.collections["a/copies"], scene.world.store
    shadowed = scene.shadow()
    follower = subscribe_at(store, spec, ReadOptions(), lambda: None)
    read = [next(follower)]
    at = shadowed.swap()
    scene.go_on()
    with pytest.raises(FencedError, match="'a/copies' was replaced at") as error:
        while True:
            read.append(next(follower))
    assert error.value.hint is not None
    assert error.value.hint.startswith("read again")
    assert max(frontier for frontier in read if isinstance(frontier, int)) == at


def rows_at(updates: Sequence[tuple[int, Any, int]], at: int) -> list[Any]:
    counts: dict[Any, int] = {}
    for clock, row, diff in updates:
        if clock <= at:
            counts[row] = counts.get(row, 0) + diff
    assert all(count >= 0 for count in counts.values())
    return sorted(row for row, count in counts.items() for _ in range(count))


def test_changes_of_a_collection_turn_at_one_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    store = scene.world.store
    spec = scene.world.catalog.collections["a/again"]
    begin = store.upper("a/again") - 1
    followed = ReducedInput(store, spec, begin)
    updates = [(begin, row, 1) for rows in followed.snapshot(begin) for row in rows]
    scene.ingest()
    shadowed = scene.shadow()
    at = shadowed.swap()
    scene.go_on()
    while True:
        _, new = followed.poll()
        updates += new
        if not new and not followed.has_more:
            break
    last = store.upper("a/again") - 1
    for time in (begin, at - 1, at, last):
        other = ReducedInput(store, spec, time)
        expected = sorted(row for rows in other.snapshot(time) for row in rows)
        other.close()
        assert rows_at(updates, time) == expected
    assert rows_at(updates, at - 1) != rows_at(updates, at)
    assert {clock for clock, _, diff in updates if diff < 0 and clock >= at} >= {at}
    followed.close()


def test_compaction_keeps_former_versions_until_their_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    world, store, name = scene.world, scene.world.store, "a/again"
    first = store.upper(name) - 1
    before = contents(world, name, first)
    shadowed = scene.shadow()
    at = shadowed.swap()
    scene.go_on()
    spec = world.catalog.collections[name]
    after = contents(world, name, at + SECOND)
    with store.capabilities.keep(name, first, at=first):
        done = compact(store, spec, since=at, grace=0)
        assert done is not None
        assert (done.since, len(done.held_by)) == (first, 1)
    assert contents(world, name, at - 1) == before
    with pytest.raises(FrontierError, match="compacted"):
        contents(world, name, first - SECOND)
    done = compact(store, spec, since=at + SECOND, grace=0)
    assert done is not None
    assert done.since == at + SECOND
    with pytest.raises(FrontierError, match="compacted"):
        contents(world, name, at - 1)
    assert contents(world, name, at + SECOND) == after
    assert store.collection("a/again@1") is None
    assert {path.parent.name for path in (world.root / "collections").rglob("*.parquet") if "again" in str(path)} <= {
        "again@",
        "again@2@",
    }
    assert sorted(store.garbage.unknown()) == []


def test_diff_names_the_keys_that_the_swap_changes(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    shadowed = scene.shadow(is_held=True)
    shadowed.meet()
    collections, store = scene.world.catalog.collections, scene.world.store
    at = store.upper("a/copies") - 1
    found = list(differing_documents(store, collections["a/copies"], collections["a/copies@2"], at))
    assert [(one.before, one.after) for one in found] == [
        ({"n": 100, "times": 10}, None),
        ({"n": 101, "times": 3}, {"n": 101, "times": 10}),
        (None, {"n": 102, "times": 3}),
    ]
    shadowed.run.close()


def test_group_has_all_readers_and_new_members(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    defined = {**EDITED, "third": Derived("again", 0), "other": Derived("numbers", 0)}
    shadowed = scene.shadow(defined)
    assert set(shadowed.group.members) == {*MEMBERS, "a/third"}
    assert set(shadowed.run.tasks) == {*MEMBERS, "a/other", "a/copies@2", "a/again@2", "a/third@2"}
    at = shadowed.swap()
    scene.check()
    assert contents(scene.world, "a/third", at - 1) == []


def test_documents_of_all_versions_are_read_by_their_own_schema(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    reads = [
        row
        for rows in read_rows(scene.world.store, scene.world.catalog.collections["a/again"], ReadOptions())
        for row in rows.tuples()
    ]
    text = text_of(EDITED).replace(
        "times: {type: integer, reduce: {strategy: sum}}", "times: {type: integer, reduce: {strategy: maximize}}"
    )
    before = contents(scene.world, "a/again", scene.world.store.upper("a/again") - 1)
    shadowed = Shadowed(scene.world, catalog_of(tmp_path, text), 1, is_held=False)
    at = shadowed.swap()
    scene.go_on()
    assert contents(scene.world, "a/again", at - 1) == before
    assert [orjson.loads(text)["times"] for _, text in contents(scene.world, "a/again", at)] != [
        orjson.loads(text)["times"] for _, text in before
    ]
    assert reads


MODULE = """
import { Document, IDerivation, SourceFrom } from 'flow/a/copies.ts';

export class Derivation extends IDerivation {
    times: Record<string, number>;

    constructor(open: { state: { times?: Record<string, number> } }) {
        super(open);
        this.times = open.state.times ?? {};
    }

    from({ doc }: { doc: SourceFrom }): Document[] {
        const times = (this.times[doc.n] ?? 0) + 1;
        this.times[doc.n] = times;
        return [{ n: doc.n + ADDED, times }];
    }

    startCommit(): { state: { updated: unknown; mergePatch: boolean } } {
        return { state: { updated: { times: this.times }, mergePatch: false } };
    }
}
"""


@pytest.mark.deno
def test_shadow_of_a_typescript_derivation(tmp_path: Path) -> None:
    def catalog(added: int) -> CatalogSpec:
        (tmp_path / "copies.ts").write_text(MODULE.replace("ADDED", str(added)))
        text = text_of(CHAIN)
        begin, end = text.index("      using: {sqlite: {migrations"), text.index("  a/again:")
        derive = "      using: {typescript: {module: copies.ts}}\n"
        derive += "      transforms: [{name: from, source: a/numbers, shuffle: {key: [/n]}}]\n"
        return catalog_of(tmp_path, text[:begin] + derive + text[end:])

    scene = Scene(tmp_path, catalog(100))
    shadowed = Shadowed(scene.world, catalog(200), 1, is_held=False)
    shadowed.swap()
    scene.check()
    assert {orjson.loads(row[3])["n"] for row in scene.world.rows("a/copies")} == {200, 201}


def test_shares_of_contents_are_those_of_the_version_in_force(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    at = scene.shadow().swap()
    scene.go_on()
    store, spec = scene.world.store, scene.world.catalog.collections["a/again"]
    for time in (at - 1, at):
        rows = [row for share in shares_at(store, spec, time) for part in rows_of_share(share) for row in part]
        assert sorted(rows) == sorted(row for part in contents_at(store, spec, time) for row in part)


def test_transient_error_of_a_live_derivation_is_waited_for(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    shadowed = scene.shadow()
    scene.ingest()
    task = shadowed.run.tasks["a/again"]
    shadowed.run._stop(task, LostError("a worker is lost"))
    shadowed.run.step()
    assert not shadowed.swapping.advance()
    assert not shadowed.run.bounds
    task.error = None
    shadowed.swap()
    scene.check()


def test_backups_have_all_versions_and_the_state_of_the_present_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    first = scene.world.store.upper("a/again") - 1
    before = contents(scene.world, "a/again", first)
    shadowed = scene.shadow()
    shadowed.swap()
    back_up(scene.world.store, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    wall, scene.world = scene.world.wall, World(tmp_path / "restored", shadowed.edited)
    scene.world.wall = wall
    assert contents(scene.world, "a/again", first) == before
    scene.check()


def test_derivation_without_a_stored_definition_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with closing(apsw.Connection(str(scene.world.root / "metadata.db"))) as database:
        database.execute("DELETE FROM history")
    with pytest.raises(UsageError, match="it ran before data folders stored definitions"):
        scene.shadow()
    assert find_group(scene.world.store, scene.world.catalog) is None


def test_swap_leaves_the_metadata_of_a_fresh_folder(tmp_path: Path) -> None:
    """Beside the former versions, and what is numbered."""
    queries = (
        "SELECT kind, collection, task, transform, frontier FROM capability ORDER BY 1, 2, 3, 4",
        "SELECT name, key, partitions, since, upper FROM collection WHERE name NOT LIKE '%@1' ORDER BY 1",
        "SELECT name, shards, positions, error, documents_in, documents_out, edits FROM task WHERE shards > 0 ORDER BY 1",
        "SELECT task, number, definition, is_regular, clamp, begins FROM history ORDER BY 1, 2",
        "SELECT digest FROM definition ORDER BY 1",
        "SELECT count(*) FROM shadow",
    )
    scene = Scene(tmp_path)
    shadowed = scene.shadow()
    shadowed.swap()
    scene.go_on()
    fresh = scene.fresh(shadowed.edited)
    rows = []
    for world in (scene.world, fresh):
        with closing(apsw.Connection(str(world.root / "metadata.db"))) as database:
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []
            rows.append([database.execute(query).fetchall() for query in queries])
    assert rows[0] == rows[1]
    places = [world.task("a/again").places["from"] for world in (scene.world, fresh)]
    assert places[0]._replace(relation=0) == places[1]._replace(relation=0)
    assert places[0].relation == scene.world.store.relation("a/copies")


@pytest.mark.spark
@pytest.mark.torture  # other shadows are filled in process; Spark derives theirs by the same plans
def test_shadow_on_spark_equals_one_in_process(tmp_path: Path, spark: SparkExecutor) -> None:
    scene = Scene(tmp_path, shards=2)
    shadowed = Shadowed(scene.world, catalog_of(tmp_path, text_of(EDITED)), 2, is_held=False, executor=spark)
    shadowed.meet()
    scene.world.catalog = shadowed.edited
    scene.ingest()
    shadowed.run.step()
    assert shadowed.errors() == {}
    shadowed.run.close()
    assert scene.world.digest() == scene.fresh(shadowed.edited).digest()


def test_contents_of_a_former_key_are_found_by_bounds(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    text = text_of(EDITED).replace(", reduce: {strategy: sum}", "").replace("key: [/n]\n", "key: [/n, /times]\n")
    shadowed = Shadowed(scene.world, catalog_of(tmp_path, text), 1, is_held=False)
    at = shadowed.swap()
    scene.go_on()
    store, spec = scene.world.store, scene.world.catalog.collections["a/copies"]
    index = next(place for place, column in enumerate(columns_of(spec)) if column.pointer == "/n")
    assert spec.key == ("/n", "/times")
    for time in (at - 1, at):
        rows = [row for part in contents_at(store, spec, time) for row in part]
        for datum in {row[index] for row in rows}:
            bounds = {index: ColumnBounds(frozenset({datum}))}
            bounded = [row for part in contents_at(store, spec, time, None, bounds) for row in part]
            assert sorted(row for row in bounded if row[index] == datum) == sorted(
                row for row in rows if row[index] == datum
            )


@pytest.mark.parametrize("is_swapped", [True, False])
def test_next_run_removes_files_that_a_stopped_process_wrote_for_a_shadow(is_swapped: bool, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    catalog, store = scene.world.catalog, scene.world.store
    shadowed = scene.shadow()
    writer = shadowed.run.tasks["a/copies@2"].capability.id
    if is_swapped:
        shadowed.swap()
    else:
        shadowed.run.step()
        shadowed.run.close()
        drop_shadows(store)
        scene.world.catalog = catalog
    late = scene.world.root / "collections" / "a" / "copies@2@" / f"{writer}.9-0.parquet"
    late.parent.mkdir(parents=True, exist_ok=True)
    late.write_bytes(b"")
    assert store.garbage.unknown() == []
    scene.go_on()
    assert not late.exists()
    assert scene.world.digest() == scene.fresh(scene.world.catalog).digest()


def test_stopped_shadow_names_the_command_that_gives_it_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    shadowed = scene.shadow()
    shadowed.run.step()
    scene.world.store.truncate("a/numbers")
    scene.ingest()
    shadowed.run.step()
    error = shadowed.run.tasks["a/copies@2"].error
    assert error is not None
    assert "start over: flowctl shadow drop" in str(error.hint)
    shadowed.run.close()


def test_compaction_of_a_shadow_is_discarded_after_the_swap(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    shadowed = scene.shadow(is_held=True)
    shadowed.run.step()
    store, spec = scene.world.store, scene.world.catalog.collections["a/copies@2"]
    segments = store.segments(spec)
    store.shadows.let_swap()
    shadowed.swap()
    with store.task_capabilities.compacting() as capability:
        assert capability is not None
        store.history.begin_files(spec.name, "compact-1", capability)
        assert segments
        assert not store.history.replace(spec.name, segments, segments, capability)
    store.history.end_files("compact-1")
    assert store.segments(scene.world.catalog.collections["a/copies"]) != []


def test_next_run_removes_a_shadow_that_a_killed_process_has_dropped(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    catalog, store = scene.world.catalog, scene.world.store
    shadowed = scene.shadow()
    shadowed.run.step()
    shadowed.run.close()
    assert list(store.shadows.drop()) == ["a/again@2", "a/copies@2"]  # and not the rest of `drop_shadows`
    scene.world.catalog = catalog
    scene.go_on()
    left = [path for kind in ("collections", "state") for path in (scene.world.root / kind).rglob("*@2@*/**/*")]
    assert [path for path in left if path.is_file()] == []
    assert [store.collection(name) for name in ("a/copies@2", "a/again@2")] == [None, None]
    assert scene.world.digest() == scene.fresh(catalog).digest()


def test_ending_run_waits_for_a_shadow_whose_last_transaction_was_long(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    shadowed = scene.shadow()
    shadowed.run.step()
    shadowed.run.bounds = {f"{name}@2": scene.world.store.upper(f"{name}@2") for name in MEMBERS}
    scene.world.wall += 60 * SECOND
    scene.ingest()
    shadowed.run.step()
    assert not shadowed.swapping.advance()
    assert shadowed.swapping.advance(is_last=True)
    shadowed.swap()


def test_shadow_begins_after_a_killed_reset_of_a_swapped_derivation(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    store = scene.world.store
    scene.shadow().swap()
    scene.go_on()
    store.reset(list(MEMBERS))  # and not the removal of files, which follows in `reset`
    scene.go_on()
    assert sorted(path.name for path in (scene.world.root / "state" / "a").iterdir()) == ["again@", "copies@"]
    shadowed = scene.shadow(THIRD)
    shadowed.swap()
    scene.check()


def test_shadow_has_a_later_epoch_than_all_earlier_users_of_its_folder(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    store = scene.world.store
    scene.shadow().swap()
    for _ in range(3):
        scene.go_on()
    capability, _ = store.acquire_task("a/copies", 1)
    store.reset(list(MEMBERS))
    scene.go_on()
    shadowed = scene.shadow(THIRD)
    assert shadowed.run.tasks["a/copies@2"].capability.epoch > capability.epoch
    shadowed.run.close()
