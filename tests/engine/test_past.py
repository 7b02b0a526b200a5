"""The record of a derivation's past: its definitions, and the transactions on whose extents documents depend."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest
from conftest import World, write_catalog
from test_edits import BASE, MORE, edit, text_of

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.reset import reset
from derive.protocol.definition_text import restored
from derive.storage.metadata.descriptions import PastPart

SECOND = 1_000_000


def ingest_and_run(world: World, number: int) -> None:
    world.ingest("e/numbers", [{"n": number, "at": format_rfc3339(world.wall)}])
    world.wall += 3 * SECOND
    run = world.run(accepted=["e/copies"])
    while run.step():
        pass
    run.close()
    assert [task.error for task in run.tasks.values()] == [None]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "data", load(write_catalog(tmp_path, text_of())), wall=BASE)


def past(world: World) -> list[PastPart]:
    return world.store.past("e/copies")


def test_past_of_a_derivation_without_edits_is_one_part(world: World) -> None:
    for number in range(4):
        ingest_and_run(world, number)

    (part,) = past(world)

    assert (part.clamp, part.is_regular, part.begins) == (0, True, {"copy": 0})
    assert part.ends == world.task("e/copies").positions
    assert part.upper == world.store.upper("e/copies")


def test_past_has_a_part_for_each_definition_in_force(world: World) -> None:
    ingest_and_run(world, 1)
    upper, former = world.store.upper("e/copies"), world.catalog.derivations["e/copies"]
    edit(world, sql="SELECT -$n AS n")
    ingest_and_run(world, 2)

    first, second = past(world)

    assert (first.clamp, first.upper, first.ends) == (0, upper, {"copy": upper})
    assert (second.clamp, second.is_regular, second.begins) == (upper, True, {"copy": upper})
    again = restored(first.definition, world.catalog.derivations["e/copies"])
    assert again is not None
    assert again.transforms[0].script.text == "SELECT $n"  # type: ignore[union-attr]
    assert again.collection.write_schema == former.collection.write_schema
    assert again.sources["e/numbers"].projections == former.sources["e/numbers"].projections


def test_past_has_a_part_for_a_transaction_that_reads_below_the_output(world: World) -> None:
    ingest_and_run(world, 1)
    upper = world.store.upper("e/copies")
    edit(world, more=MORE)
    ingest_and_run(world, 2)
    ingest_and_run(world, 3)
    ingest_and_run(world, 4)

    parts = past(world)

    assert [part.is_regular for part in parts] == [True, False, True]
    assert parts[1].begins == {"copy": upper, "more": 0}
    assert parts[1].ends == parts[2].begins


def test_past_has_a_part_for_each_transaction_with_differing_priorities(world: World) -> None:
    edit(world, options="priority: 1,", more=MORE)
    ingest_and_run(world, 1)
    count = len(past(world))
    world.wall += 5 * SECOND
    run = world.run()
    run.step()
    run.close()

    assert [part.is_regular for part in past(world)] == [False] * count, "time alone adds no part"
    ingest_and_run(world, 2)
    assert len(past(world)) > count


def test_past_ends_at_the_former_positions_after_a_change_of_the_delay(world: World) -> None:
    ingest_and_run(world, 1)
    upper = world.store.upper("e/copies")
    edit(world, options="readDelay: 1s,")
    ingest_and_run(world, 2)

    first, second = past(world)

    assert first.ends == {"copy": upper}
    assert second.begins == {"copy": upper + SECOND}


def test_part_of_the_past_ends_when_a_transform_is_renamed(world: World) -> None:
    ingest_and_run(world, 1)
    upper = world.store.upper("e/copies")
    edit(world, name="other", options="formerly: copy,")
    ingest_and_run(world, 2)

    first, second = past(world)

    assert (first.ends, second.begins) == ({"copy": upper}, {"other": upper})


def test_reset_deletes_the_past_and_its_definitions(world: World) -> None:
    ingest_and_run(world, 1)
    edit(world, sql="SELECT -$n AS n")
    ingest_and_run(world, 2)
    reset(world.catalog, world.store, ["e/copies"])

    assert past(world) == []
    with closing(apsw.Connection(str(world.root / "metadata.db"), apsw.SQLITE_OPEN_READONLY)) as database:
        assert database.execute("SELECT count(*) FROM definition").get == 0
    ingest_and_run(world, 3)
    assert [(part.number, part.clamp, part.begins) for part in past(world)] == [(0, 0, {"copy": 0})]
