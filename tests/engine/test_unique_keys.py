"""Tables of which each key is one row of an endpoint: a key with two rows is told, with both, before any is stored."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import World, write_catalog
from forked_flowctl import flowctl
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.cli.main import flowctl as command_line
from derive.engine.unique_keys import UniqueKeys
from derive.errors import SchemaViolation, TaskError
from derive.protocol.specs import CatalogSpec
from derive.relations.table_rows import TableRows
from derive.storage.table_types import Table, TableColumn
from derive.time import BEGINNING
from derive.time.positions import SourceRead

ITEMS = "sql/public/items"
CATALOG = """
collections:
  sql/public/items:
    schema: {type: object, required: [id], properties: {id: {type: integer}, v: {type: number}}}
    key: [/id]
  t/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}, v: true}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: fromItems, source: sql/public/items, shuffle: any, lambda: "SELECT $id, $v"}]
"""
COLUMNS = (TableColumn("id", "bigint"), TableColumn("v", "double precision"))
Row = tuple[int, float | str]


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    return World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)


def append(world: World, table: Table, *changes: tuple[Row, int]) -> int:
    """Change a table in one commit; returns the clock behind it."""
    world.wall += 1_000_000
    clock = world.store.timeline.assign(1)
    world.store.tables.append(clock, {table.id: TableRows(table).changes(changes)})
    return clock + 1


def keys_of(world: World, table: Table) -> UniqueKeys:
    spec = world.catalog.derivations["t/copies"]
    return UniqueKeys(world.store, spec.name, spec.inputs[0], table, table.id)


def read(world: World, begin: int, end: int) -> SourceRead:
    segments = tuple(world.store.segments(world.catalog.collections[ITEMS], None, begin))
    return SourceRead(0, 0, begin, end, segments).within(begin, end)


def test_a_second_row_of_a_key_is_reported_with_both_rows_and_the_time(world: World) -> None:
    table = world.store.tables.create(ITEMS, COLUMNS)
    first = append(world, table, ((1, 2.5), 1), ((2, 2.5), 1))
    second = append(world, table, ((1, 3.5), 1))
    third = append(world, table, ((1, 2.5), -1))
    keys = keys_of(world, table)

    keys.require(read(world, BEGINNING, first))
    for _ in range(2):  # nothing is stored, so flowctl retries
        with pytest.raises(TaskError) as reported:
            keys.require(read(world, first, third))
    assert reported.value.message == (
        "'fromItems' of 't/copies' stores one row for each key of 'sql/public/items', but the key [1] has two rows from"
        ' 1970-01-01T00:00:03.000000Z on: {"id":1,"v":2.5} and {"id":1,"v":3.5}'
    )
    assert second == 3_000_001


def test_row_that_replaces_another_is_unique(world: World) -> None:
    table = world.store.tables.create(ITEMS, COLUMNS)
    append(world, table, ((1, 2.5), 1))
    begin = append(world, table, ((1, 3.5), 1), ((1, 2.5), -1))
    end = append(world, table, ((1, 3.5), -1))
    keys = keys_of(world, table)

    keys.require(read(world, begin, end))  # what was before is counted first
    keys.require(read(world, end, append(world, table, ((1, 4.5), 1))))


@settings(max_examples=int(os.environ.get("FLOW_LAW_EXAMPLES", "15")), deadline=None)
@given(
    commits=st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=4), max_size=8),
    cuts=st.sets(st.integers(0, 8)),
    skipped=st.integers(0, 3),
)
def test_key_with_two_rows_is_reported_at_any_time(
    commits: list[list[tuple[int, int, bool]]], cuts: set[int], skipped: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A table passes if and only if no commit leaves two rows of a key, in any batching and from any beginning."""
    folder = tmp_path_factory.mktemp("worlds")
    world = World(folder / "data", load(write_catalog(folder, CATALOG)), wall=1_000_000)
    table = world.store.tables.create(ITEMS, COLUMNS)
    held: Counter[Row] = Counter()
    ends, is_unique = [world.store.upper(ITEMS)], True
    for commit in commits:
        changes: Counter[Row] = Counter()
        for key, value, is_added in commit:
            row = (key, float(value))
            if is_added or held[row] + changes[row] > 0:
                changes[row] += 1 if is_added else -1
        held.update(changes)
        ends.append(append(world, table, *((row, diff) for row, diff in changes.items() if diff)))
        is_unique &= all(sum(n for row, n in held.items() if row[0] == key) <= 1 for key in range(3))
    borders = [ends[min(skipped, len(ends) - 1)], *(ends[cut] for cut in sorted(cuts) if cut < len(ends)), ends[-1]]
    keys, reported = keys_of(world, table), False
    try:
        for begin, end in itertools.pairwise(borders):
            if begin < end:
                keys.require(read(world, begin, end))
        keys.require(read(world, ends[-1], ends[-1] + 1))
    except TaskError:
        reported = True
    world.store.close()
    assert reported is not is_unique


NUMBERS: tuple[float | str, ...] = (1.5, "NaN", float("inf"), float("-inf"))


def test_numbers_without_json_form_are_reported_with_a_hint_and_lose_nothing(world: World, tmp_path: Path) -> None:
    table = world.store.tables.create(ITEMS, COLUMNS)
    append(world, table, *(((key, value), 1) for key, value in enumerate(NUMBERS)))
    world.wall += 2_000_000
    with pytest.raises(SchemaViolation) as reported:
        world.step()
    assert reported.value.hint is not None
    assert "'type: [number, string]' and 'format: number'" in reported.value.hint

    wide = CATALOG.replace("v: {type: number}", "v: {type: [number, string], format: number}")
    mended = World(world.root, load(write_catalog(tmp_path, wide)), wall=world.wall + 2_000_000)
    mended.step()
    assert [text for _, _, _, text in mended.rows("t/copies")] == [
        '{"id":0,"v":1.5}',
        '{"id":1,"v":"NaN"}',
        '{"id":2,"v":"Infinity"}',
        '{"id":3,"v":"-Infinity"}',
    ]


CHECKED = """
collections:
  sql/public/items: {schema: {type: object, required: [id], properties: {id: {type: string}, v: {type: integer}}}, key: [/id]}
materializations:
  t/rows:
    endpoint: {connector: {image: materialize-sqlite, config: {path: out.db}}}
    bindings: [{source: sql/public/items, resource: {table: items, delta_updates: IS_DELTA}}]
"""


def test_check_reports_a_table_with_two_rows_of_a_key(tmp_path: Path) -> None:
    """They are an error for a binding with one row per key, as in a run, and none for delta updates."""
    path = tmp_path / "flow.yaml"
    path.write_text(CHECKED.replace("IS_DELTA", "false"))
    flowctl(tmp_path, "sql", "-c", "CREATE TABLE items (id text, v bigint)", "-c", "INSERT INTO items VALUES ('a', 1)")
    assert flowctl(tmp_path, "check")[0] == 0
    flowctl(tmp_path, "sql", "-c", "INSERT INTO items VALUES ('a', 2)")
    status, _, reported = flowctl(tmp_path, "check")
    assert status == 1
    assert "E714" in reported
    assert '{"id":"a","v":1} and {"id":"a","v":2}' in reported
    path.write_text(CHECKED.replace("IS_DELTA", "true"))
    assert flowctl(tmp_path, "check")[0] == 0


@pytest.mark.parametrize(("most", "status"), [(2, 1), (-1, 0)])
def test_check_does_not_read_a_large_table(
    most: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flow.yaml").write_text(CHECKED.replace("IS_DELTA", "false"))
    inserts = ("-c", "CREATE TABLE items (id text, v bigint)", "-c", "INSERT INTO items VALUES ('a', 1), ('a', 2)")
    flowctl(tmp_path, "sql", *inserts)
    monkeypatch.setattr("derive.engine.unique_keys.MOST_CHECKED", most)
    checked = CliRunner().invoke(command_line, ["check", "--source", str(tmp_path / "flow.yaml")])
    assert checked.exit_code == status
