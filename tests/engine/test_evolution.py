"""Catalogs that change under a task: what is safe goes on, what is not is refused with its place and a way out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import World, write_catalog
from forked_flowctl import BARE, flowctl

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.reset import split
from derive.errors import FlowError, LambdaError, SchemaViolation, StorageError, UnacceptedError
from derive.planning.plan import plan_tasks

BASE = 1_700_000_000_000_000
SECOND = 1_000_000

CATALOG = """\
collections:
  e/source:
    schema:
      type: object
      required: [id, k, v, at]
      properties: {id: {type: integer}, k: {type: string}, v: {type: integer, MAXIMUM}, at: {type: string}}
    key: [/id]
    projections: {PARTITION}
  e/counts:
    schema:
      type: object
      required: [k, n]
      properties: {k: {type: string}, n: {type: integer, LIMIT}, v: {type: integer}}
    key: [/k]
    derive:
      using:
        sqlite:
          migrations:
            MIGRATIONS
      transforms:
        - name: count
          source: e/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen (k, n) VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING k, n, $v;
        TRANSFORM
  e/beside:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: all, source: e/source, shuffle: any, lambda: "SELECT $id;"}]
"""
SEEN = "CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"
OTHER = "CREATE TABLE other (n INTEGER);"
THIRD = "CREATE TABLE third (n INTEGER);"


def catalog_text(migrations: Sequence[str] = (SEEN, OTHER), **replaced: str) -> str:
    text = CATALOG.replace("MIGRATIONS", f"\n{' ' * 12}".join(f"- {each}" for each in migrations))
    for name in ("MAXIMUM", "LIMIT", "TRANSFORM"):
        text = text.replace(f", {name}" if name != "TRANSFORM" else name, replaced.get(name, ""))
    return text.replace("PARTITION", replaced.get("PARTITION", ""))


def world_of(folder: Path, text: str, wall: int = BASE) -> World:
    folder.mkdir(exist_ok=True)
    return World(folder / "data", load(write_catalog(folder, text)), wall=wall)


def add(world: World, batch: int, values: Sequence[int] = (1, 2, 3)) -> None:
    """Three documents of one key, and time enough for them."""
    documents = [
        {"id": 3 * batch + place, "k": "a", "v": v, "at": format_rfc3339(BASE + batch * SECOND + place)}
        for place, v in enumerate(values)
    ]
    world.ingest("e/source", documents)
    world.wall = BASE + (batch + 1) * SECOND


def counted(world: World) -> list[int]:
    return [json.loads(row[3])["n"] for row in world.rows("e/counts")]


def errors(world: World, shards: int | None = None) -> dict[str, FlowError]:
    run = world.run(shards=shards)
    run.step()
    run.close()
    return {name: task.error for name, task in run.tasks.items() if task.error}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a task has run with two migrations, over three documents."""
    world = world_of(tmp_path, catalog_text())
    add(world, 0)
    world.step(shards=2)
    assert counted(world) == [3]
    add(world, 1)
    world.store.close()
    return tmp_path


LATER = BASE + 2 * SECOND


@pytest.mark.parametrize(
    ("migrations", "line", "message"),
    [
        # edited: the place of the first difference, and how it went on there
        (
            [SEEN, OTHER.replace("n INTEGER", "n TEXT")],
            20,
            "migration 1 of 'e/counts' was applied and has been edited since: the applied text continues here with 'INTEGER);'",
        ),
        # removed
        ([SEEN], 9, f"migration 1 of 'e/counts' was applied and is no longer in the catalog: {OTHER!r}"),
        # reordered
        (
            [OTHER, SEEN],
            19,
            (
                "migration 0 of 'e/counts' was applied and has been edited since: the applied text continues"
                " here with 'seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);'"
            ),
        ),
        # another one in between
        (
            [SEEN, THIRD, OTHER],
            20,
            "migration 1 of 'e/counts' was applied and has been edited since: the applied text continues here with 'other (n INTEGER);'",
        ),
    ],
)
def test_migrations_that_were_applied_may_not_change(
    migrations: list[str], line: int, message: str, folder: Path
) -> None:
    changed = world_of(folder, catalog_text(migrations), LATER)

    found = errors(changed)

    assert list(found) == ["e/counts"]
    error = found["e/counts"]
    assert isinstance(error, LambdaError)
    assert (error.message, error.position and error.position.line) == (message, line)
    assert error.hint in (
        "restore the applied text, and append a migration with the change",
        "put the migration back; to undo its effect, append another migration",
    )
    assert counted(changed) == [3]
    assert len(changed.rows("e/beside")) == 6  # whose task has nothing to do with it

    mended = world_of(folder, catalog_text([SEEN, OTHER, THIRD]), LATER)
    assert errors(mended) == {}
    assert counted(mended) == [3, 6]


@pytest.mark.parametrize("shards", [1, 4])
def test_edited_migration_is_refused_whichever_shard_has_documents(shards: int, tmp_path: Path) -> None:
    """An edited migration has the same refusal for any number of shards (law L1), and so says the plan."""

    def ingest(world: World, batch: int) -> None:
        key = "adhegibc"[batch]  # of four shards, the one of "a" gets only the last two
        world.ingest("e/source", [{"id": batch, "k": key, "v": 1, "at": format_rfc3339(BASE + batch * SECOND)}])
        world.wall = BASE + (batch + 1) * SECOND

    def planned(world: World) -> str:
        return next(plan.status for plan in plan_tasks(world.store, world.catalog) if plan.name == "e/counts")

    world = world_of(tmp_path, catalog_text())
    ingest(world, 0)
    world.step(shards=shards)
    edited = SEEN.replace("n INTEGER", "n INT")
    for batch in range(1, 8):
        changed = world_of(tmp_path, catalog_text([edited, OTHER]), world.wall)
        ingest(changed, batch)
        assert planned(changed) == "refused"
        found = errors(changed)
        assert found["e/counts"].message.startswith("migration 0 of 'e/counts' was applied and has been edited since")
        assert counted(changed) == [1]
        world.wall = changed.wall
    undone = world_of(tmp_path, catalog_text(), world.wall)
    assert planned(undone) == "unchanged"
    assert errors(undone) == {}
    assert counted(undone) == [1] * 8


def test_plan_leaves_no_files_beside_the_state(tmp_path: Path) -> None:
    world = world_of(tmp_path, catalog_text())
    add(world, 0)
    world.step(shards=1)
    split(world.store, "e/counts")  # the databases are in no folder of an attempt
    files = sorted(tmp_path.glob("data/state/**/*"))
    plan_tasks(world.store, world.catalog)
    assert sorted(tmp_path.glob("data/state/**/*")) == files


def test_migration_that_no_shard_has_applied_may_be_edited(tmp_path: Path) -> None:
    world = world_of(tmp_path, catalog_text())
    add(world, 0)
    world.step(shards=2)
    for migrations in ([SEEN, OTHER, THIRD], [SEEN, OTHER, THIRD.replace("n INTEGER", "n TEXT")], [SEEN, OTHER]):
        changed = world_of(tmp_path, catalog_text(migrations), world.wall + SECOND)
        (plan,) = [plan for plan in plan_tasks(changed.store, changed.catalog) if plan.name == "e/counts"]
        assert (plan.status, errors(changed)) == ("changed", {})  # without documents
        world.wall = changed.wall


AGAIN = """- name: again
          source: e/source
          shuffle: {key: [/k]}
          lambda: UPDATE seen SET n = n + 100 WHERE k = $k RETURNING k, n;"""


@pytest.mark.parametrize("shards", [1, 3])
def test_state_stays_when_transforms_are_added_and_removed(shards: int, tmp_path: Path) -> None:
    world = world_of(tmp_path, catalog_text())
    add(world, 0)
    world.step(shards=shards)

    both = world_of(tmp_path, catalog_text(TRANSFORM=AGAIN), world.wall)
    add(both, 1)
    run = both.run()
    # The new one reads from the start; what it publishes of the past cannot be earlier than what is final.
    assert [each.name for each in run.tasks["e/counts"].beginning.again] == ["again"]
    run.step()
    run.close()
    assert counted(both) == [3, 606]

    alone = world_of(tmp_path, catalog_text(), both.wall)
    add(alone, 2)
    assert errors(alone) == {}
    assert counted(alone) == [3, 606, 609]

    back = world_of(tmp_path, catalog_text(TRANSFORM=AGAIN), alone.wall)
    add(back, 3)
    run = back.run()
    # It was never forgotten, so it goes on where it was.
    assert run.tasks["e/counts"].beginning.again == ()
    run.step()
    run.close()
    assert counted(back) == [3, 606, 609, 1212]


@pytest.mark.parametrize("shards", [1, 3])
def test_changed_shuffle_is_refused_if_shards_have_state(shards: int, tmp_path: Path) -> None:
    world = world_of(tmp_path, catalog_text())
    add(world, 0)
    world.step(shards=shards)

    text = catalog_text().replace("shuffle: {key: [/k]}", "shuffle: {key: [/v]}")
    other = world_of(tmp_path, text, world.wall)
    add(other, 1)
    found = errors(other)
    if shards == 1:
        assert found == {}  # there is but one place to look for it
        assert counted(other) == [3, 6]
        return
    error = found["e/counts"]
    assert error.message == (
        "'count' of 'e/counts' was shuffled by key [/k], and is now shuffled by key [/v]:"
        " the state of its 3 shards is divided by the former shuffle"
    )
    assert error.hint == "shuffle as before, or start over: flowctl reset --task e/counts"
    assert error.position is not None
    assert (error.position.line, counted(other)) == (22, [3])

    back = world_of(tmp_path, catalog_text(), other.wall)
    assert errors(back) == {}
    assert counted(back) == [3, 6]


SLOW_COUNT = "shuffle: {key: [/k]}\n          readDelay: DELAY\n          lambda: INSERT"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("before", "after"), [("4s", "1s"), ("1s", "4s"), ("4s", "0s"), ("0s", "3s")])
def test_changed_read_delay_neither_skips_nor_repeats_documents(
    before: str, after: str, shards: int, tmp_path: Path
) -> None:
    def delayed(delay: str) -> str:
        slow = SLOW_COUNT.replace("DELAY", delay)
        return catalog_text().replace("shuffle: {key: [/k]}\n          lambda: INSERT", slow)

    world = world_of(tmp_path, delayed(before))
    for batch in range(6):
        add(world, batch)
        world.step(shards=shards)
    changed = world_of(tmp_path, delayed(after), world.wall)
    for batch in range(6, 9):
        add(changed, batch)
        changed.step()
    changed.wall += 10 * SECOND
    changed.step()

    assert counted(changed)[-1] == 27
    assert len(changed.rows("e/beside")) == 27


def test_changed_source_waits_and_is_read_from_its_start_after_acceptance(tmp_path: Path) -> None:
    world = world_of(tmp_path, catalog_text())
    add(world, 0)
    world.step()
    text = (
        catalog_text()
        .replace(
            "source: e/source\n          shuffle: {key: [/k]}\n          lambda: INSERT INTO seen (k, n) VALUES ($k",
            "source: e/beside\n          shuffle: {key: [/id]}\n          lambda: INSERT INTO seen (k, n) VALUES ($id",
        )
        .replace("RETURNING k, n, $v", "RETURNING k, n, $id AS v")
    )
    changed = world_of(tmp_path, text, world.wall)

    with pytest.raises(UnacceptedError, match="'count' reads 'e/beside' in place of 'e/source'"):
        changed.step()
    assert len(changed.rows("e/counts")) == 1

    run = changed.run(accepted=["e/counts"])
    assert [each.name for each in run.tasks["e/counts"].beginning.again] == ["count"]
    run.step()
    run.close()
    assert [json.loads(row[3]) for row in changed.rows("e/counts")][1:] == [
        {"k": "0", "n": 1, "v": 0},
        {"k": "1", "n": 1, "v": 1},
        {"k": "2", "n": 1, "v": 2},
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace("key: [/id]", "key: [/id, /k]", 1),
            r"collection 'e/source' was stored with key \[\"/id\"\], and the catalog now says \[\"/id\",\"/k\"\]",
        ),
        (
            lambda text: text.replace("projections: {}", "projections: {k: {location: /k, partition: true}}"),
            (
                r"collection 'e/source' was stored with logical partitions \[\], and the catalog now says"
                r" \[\[\"k\",\"/k\"\]\]"
            ),
        ),
    ],
)
def test_key_and_partitions_may_not_change(change: Any, message: str, folder: Path) -> None:
    changed = world_of(folder, change(catalog_text()), LATER)

    with pytest.raises(StorageError, match=message) as caught:
        changed.run()
    assert caught.value.position is not None
    assert caught.value.position.line == 2
    assert caught.value.hint == "use another name, or remove the data folder to start over"


def status(folder: Path) -> dict[str, Any]:
    code, out, err = flowctl(folder, "status", "-o", "json", env=BARE | {"FLOW_DATA": str(folder / "data")})
    assert code == 0, err
    rows = map(json.loads, out.splitlines())
    return {row["task"]: row for row in rows}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("strict", "said"),
    [
        # the source's schema, against a document that was stored before it
        (
            {"MAXIMUM": ", maximum: 9"},
            [r"transform 'count' of 'e/counts' reads an invalid document", "[4]", "/v", "40"],
        ),
        # the derived collection's schema, against what the lambda publishes
        (
            {"LIMIT": ", maximum: 4"},
            [r"transform 'count' of 'e/counts' published an invalid document", '["a"]', "/n", '"id":4'],
        ),
    ],
)
def test_schema_violated_by_stored_documents_stops_the_task_until_corrected(
    strict: dict[str, str], said: list[str], tmp_path: Path
) -> None:
    batches = [(1, 2, 3), (4, 40, 5), (6, 7, 8)]
    undisturbed = world_of(tmp_path / "undisturbed", catalog_text())
    world = world_of(tmp_path / "stopped", catalog_text())
    for number, values in enumerate(batches):
        add(undisturbed, number, values)
        undisturbed.step(shards=3)
    add(world, 0, batches[0])
    world.step(shards=3)
    for number in (1, 2):
        add(world, number, batches[number])

    stopped = world_of(tmp_path / "stopped", catalog_text(**strict), world.wall)
    found = errors(stopped)
    assert isinstance(found["e/counts"], SchemaViolation)
    assert all(each in found["e/counts"].message for each in said)
    assert found["e/counts"].position is not None
    assert counted(stopped) == [3]
    row = status(tmp_path / "stopped")["e/counts"]
    assert (row["state"], row["error"], row["waiting"]) == ("failed", found["e/counts"].message, 6)
    assert errors(stopped).keys() == found.keys()  # trying again changes nothing

    mended = world_of(tmp_path / "stopped", catalog_text(), world.wall)
    assert errors(mended) == {}
    assert counted(mended) == [3, 6, 9]
    assert mended.digest() == undisturbed.digest()
    row = status(tmp_path / "stopped")["e/counts"]
    assert (row["state"], row["error"], row["waiting"]) == ("idle", None, 0)
