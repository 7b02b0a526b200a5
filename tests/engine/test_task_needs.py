"""What tasks need of their sources, and what becomes of tasks whose sources were compacted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.inputs import acquire_inputs, settle
from derive.engine.reset import reset
from derive.errors import FencedError, StorageError, TaskError
from derive.storage.compaction import compact
from derive.time.positions import Segment

CATALOG = """
collections:
  n/changes:
    schema: &schema
      type: object
      required: [k, n]
      reduce: {strategy: merge}
      properties: {k: {type: string}, n: {type: integer, reduce: {strategy: sum}}, at: {type: string}}
    key: [/k]
  n/totals:
    schema: *schema
    key: [/k]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: now, source: n/changes, shuffle: any, lambda: "SELECT $k, $n;"}
        - {name: later, source: n/changes, shuffle: any, readDelay: 5s, lambda: "SELECT $k, 100 * $n AS n;"}
MORE
"""
MORE = """
        - {name: more, source: n/changes, shuffle: any, lambda: "SELECT 'more' AS k, $n;"}
"""
ONE = CATALOG.replace("MORE\n", "")
ALONE = CATALOG[: CATALOG.index("  n/totals")]
NAME = "n/changes"
OTHERS = """
  n/others: {schema: *schema, key: [/k]}
"""


def world_of(folder: Path, text: str = CATALOG) -> World:
    return World(folder / "data", load(write_catalog(folder, text.replace("MORE\n", ""))), wall=10_000_000)


def second(world: World, *documents: dict[str, object]) -> None:
    """Ingest documents, let a second pass, and run."""
    world.ingest(NAME, documents, None)
    world.wall += 1_000_000
    world.step()


def since_of(world: World, wanted: int) -> int:
    done = compact(world.store, world.catalog.collections[NAME], since=wanted, grace=0)
    assert done is not None
    return done.since


def totals(world: World) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, _, _, text in world.rows("n/totals"):
        document = orjson.loads(text)
        found[document["k"]] = found.get(document["k"], 0) + document["n"]
    return found


def test_processed_history_is_compacted_without_changing_results(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "compacted").mkdir()
    plain, compacted = world_of(tmp_path / "plain"), world_of(tmp_path / "compacted")
    reached = []
    for number in range(12):
        for world in (plain, compacted):
            second(world, {"k": "ab"[number % 2], "n": number}, {"k": "c", "n": 1})
        reached.append(since_of(compacted, 1_000_000_000))

    # Of what is sealed up to second 11, the delay of 5 s keeps what was published from second 6 on.
    assert reached[-1] == 17_000_000
    assert reached == sorted(reached)
    assert compacted.digest() == plain.digest()
    assert len(compacted.rows(NAME)) == 3 + 10


def test_stopped_task_keeps_its_capability(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    second(world, {"k": "a", "n": 1})
    world.ingest(NAME, [{"k": "a", "n": 2}], None)

    assert since_of(world, 1_000_000_000) == 6_000_000
    assert settle(world.catalog, world.store) == []
    assert world.store.task_capabilities.readers() == {"n/totals"}


def test_new_transform_begins_with_compacted_documents(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for number in range(8):
        second(world, {"k": "a", "n": number})
    assert since_of(world, 14_000_000) == 13_000_000
    world.catalog = load(write_catalog(tmp_path, CATALOG.replace("MORE\n", MORE.lstrip("\n"))))

    run = world.run()
    reported = [(transform.name, since) for transform, since in run.tasks["n/totals"].beginning.compacted]
    run.close()
    second(world)

    assert reported == [("more", 13_000_000)]
    assert totals(world)["more"] == sum(range(8))
    assert since_of(world, 1_000_000_000) == 14_000_000


def test_task_absent_during_compaction_is_reported(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for number in range(8):
        second(world, {"k": "a", "n": number})
    here, world.catalog = world.catalog, load(write_catalog(tmp_path, ALONE))

    assert settle(world.catalog, world.store) == ["n/totals"]
    assert since_of(world, 16_000_000) == 16_000_000
    world.catalog = here
    for _ in range(2):  # the second run does not take the compacted history for one that was kept
        with pytest.raises(TaskError, match="'later' of 'n/totals' still needs history of .* was compacted") as caught:
            world.step()
    assert (caught.value.hint or "").endswith(
        "to read the kept history from its start, or start over: flowctl reset --task n/totals"
    )

    reset(world.catalog, world.store, ["n/totals"])
    second(world, {"k": "a", "n": 1})
    assert totals(world) == {"a": 29}
    world.wall += 9_000_000
    second(world)
    assert totals(world) == {"a": 29 + 100 * 29}


EDITS_THAT_STOP = [
    pytest.param(ONE.replace("name: now, source: n/changes", "name: now, source: n/others"), 1, id="another source"),
    pytest.param(
        ONE.replace("name: now,", "name: then,").replace("n/changes, sh", "n/others, sh"), 1, id="renamed, too"
    ),
    pytest.param(
        ONE.replace("name: now, source: n/changes, shuffle: any", "name: now, source: n/others, shuffle: {key: [/k]}"),
        4,
        id="another shuffle",
    ),
]


@pytest.mark.parametrize(("after", "shards"), EDITS_THAT_STOP)
def test_task_stopped_by_an_edit_keeps_its_capabilities(after: str, shards: int, tmp_path: Path) -> None:
    """The history that the task needed is there when the edit is undone."""
    before = ONE.replace("readDelay: 5s, ", "").replace(
        "name: later, source: n/changes", "name: later, source: n/others"
    )
    after = after.replace("readDelay: 5s, ", "").replace(
        "name: later, source: n/changes", "name: later, source: n/others"
    )
    world = world_of(tmp_path, before + OTHERS)
    second(world, {"k": "a", "n": 1}, {"k": "a", "n": 2})
    world.catalog = load(write_catalog(tmp_path, after + OTHERS))
    world.ingest(NAME, [{"k": "a", "n": 10}, {"k": "a", "n": 20}], None)
    world.wall += 5_000_000
    run = world.run()
    assert run.tasks["n/totals"].beginning.error is not None
    run.step()
    run.close()

    assert since_of(world, 1_000_000_000) == 11_000_000
    assert len(world.rows(NAME)) == 3

    world.catalog = load(write_catalog(tmp_path, before + OTHERS))
    second(world)
    assert totals(world) == {"a": 33}
    assert since_of(world, 1_000_000_000) > 11_000_000


def test_reset_task_needs_the_whole_history(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for number in range(8):
        second(world, {"k": "a", "n": number})
    assert since_of(world, 11_000_000) == 11_000_000

    reset(world.catalog, world.store, ["n/totals"])

    assert since_of(world, 1_000_000_000) == 11_000_000


def test_fenced_run_does_not_change_capabilities_of_its_task(tmp_path: Path) -> None:
    """With an older catalog it would give up what a transform of the newer one has yet to read."""
    world = world_of(tmp_path)
    second(world, {"k": "a", "n": 1})
    spec = world.catalog.derivations["n/totals"]
    older, _ = world.store.acquire_task("n/totals", 1)
    world.store.acquire_task("n/totals", 1)

    with pytest.raises(FencedError, match="another flowctl runs 'n/totals'"):
        acquire_inputs(world.store, replace(spec, transforms=spec.transforms[:1]), {}, older)

    assert since_of(world, 1_000_000_000) == 6_000_000


def test_task_of_an_older_version_receives_its_capability(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    second(world, {"k": "a", "n": 1})
    world.store.task_capabilities.release_inputs("n/totals")

    assert settle(world.catalog, world.store) == []
    assert since_of(world, 1_000_000_000) == 6_000_000


def test_removal_of_not_before_after_compaction_is_an_error(tmp_path: Path) -> None:
    """Compaction folded excluded documents of `notBefore` with processed ones."""
    delayed = "{name: later, source: n/changes,"
    bounded = delayed.replace("n/changes", "{name: n/changes, notBefore: 1970-01-01T00:00:17Z}")
    world = world_of(tmp_path)
    for number in range(8):
        second(world, {"k": "a", "n": number})
    free, world.catalog = world.catalog, load(write_catalog(tmp_path, ONE.replace(delayed, bounded)))
    world.run().close()

    assert since_of(world, 17_000_000) == 17_000_000
    world.catalog = free
    with pytest.raises(
        TaskError, match="'later' of 'n/totals' still needs history of .* was compacted while .* bounded by 'notBefore'"
    ):
        world.step()


# Segments that a transform cannot need are not opened: here they are removed before the run, which does not notice.


BASE = 1_700_000_000_000_000
SECOND = 1_000_000

SKIPPED = """
collections:
  s/source:
    schema: {type: object, required: [id, p, at], properties: {id: {type: integer}, p: {type: [string, "null"]}, at: {type: string}}}
    key: [/id]
    projections: {p: {location: /p, partition: true}}
  s/seen:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (id INTEGER PRIMARY KEY);"]}}
      transforms:
        - name: see
          source: {name: s/source, OPTIONS}
          shuffle: any
          lambda: INSERT INTO seen VALUES ($id) RETURNING id;
"""
NOTHING = "partitions: {}"


def skipping_world(folder: Path, options: str) -> World:
    return World(folder / "data", load(write_catalog(folder, SKIPPED.replace("OPTIONS", options))))


def load_batch(world: World, first: int) -> None:
    """Three documents, one of each logical partition and so of each segment, at `first` seconds."""
    documents = [
        {"id": 10 * first + place, "p": p, "at": format_rfc3339(BASE + first * SECOND + place)}
        for place, p in enumerate(["x", "y", None])
    ]
    world.ingest("s/source", documents)
    world.wall = BASE + (first + 1) * SECOND


def segments(world: World) -> Sequence[Segment]:
    return world.store.segments(world.catalog.collections["s/source"])


def remove(world: World, kept: list[int]) -> int:
    """Remove every segment of the source that holds none of these ids; returns how many."""
    keep = {BASE + each // 10 * SECOND + each % 10 for each in kept}
    gone = [each for each in segments(world) if each.clock_min not in keep and (world.root / each.path).exists()]
    for each in gone:
        (world.root / each.path).unlink()
    return len(gone)


def seen(world: World) -> list[int]:
    return [json.loads(row[3])["id"] for row in world.rows("s/seen")]


AT_1 = format_rfc3339(BASE + SECOND)
AT_2 = format_rfc3339(BASE + 2 * SECOND)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("options", "read"),
    [
        ("partitions: {include: {p: [x]}}", [0, 10, 20]),
        ("partitions: {include: {p: [x, null]}}", [0, 2, 10, 12, 20, 22]),
        ("partitions: {exclude: {p: [x, null]}}", [1, 11, 21]),
        ("partitions: {include: {p: [x, y]}, exclude: {p: [y]}}", [0, 10, 20]),
        # `notBefore` is the first moment that is read
        (f"notBefore: {AT_1}", [10, 11, 12, 20, 21, 22]),
        # and `notAfter` the first that is not
        (f"notAfter: {AT_1}", [0, 1, 2]),
        (f"notBefore: {AT_1}, notAfter: {AT_2}, partitions: {{exclude: {{p: [y]}}}}", [10, 12]),
        ("partitions: {include: {p: [z]}}", []),
    ],
)
def test_only_segments_with_selected_documents_are_opened(
    options: str, read: list[int], shards: int, tmp_path: Path
) -> None:
    world = skipping_world(tmp_path, options)
    for first in range(3):
        load_batch(world, first)

    assert remove(world, read) == 9 - len(read)
    world.step(shards=shards)

    assert seen(world) == read


@pytest.mark.parametrize("shards", [1, 3])
def test_processed_segments_are_not_opened_again(shards: int, tmp_path: Path) -> None:
    world = skipping_world(tmp_path, NOTHING)
    for first in range(3):
        load_batch(world, first)
        new = [10 * first, 10 * first + 1, 10 * first + 2]
        assert remove(world, new) == (3 if first else 0)
        world.step(shards=shards)

    assert seen(world) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_missing_needed_segment_is_reported(tmp_path: Path) -> None:
    world = skipping_world(tmp_path, "partitions: {include: {p: [x]}}")
    load_batch(world, 0)
    assert remove(world, [1, 2]) == 1

    with pytest.raises(StorageError, match=r"p=x/ingest-.*\.parquet"):
        world.step()
