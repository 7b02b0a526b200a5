"""Scans of collections: the rows that bounds and filters leave, and the row groups that are read for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import World, write_catalog
from explained import BASE, SECOND

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.document.key import pack
from derive.storage.segments.columns import TypedColumn
from derive.why import scan as scanning
from derive.why.scan import Match, ScanBounds, StoredDocument, Ticks, column_values, scan

CATALOG = """
collections:
  c/in:
    key: [/id]
    schema:
      type: object
      required: [id, who]
      properties: {id: {type: integer}, who: {type: string}, n: {type: number}, at: {type: string}}
"""
COUNT = 60
GROUP = 4
WHO = TypedColumn("who", "/who", "string")
N = TypedColumn("n", "/n", "number")


def document(number: int) -> dict[str, Any]:
    """Every third document has an integer, which a column of numbers does not hold exactly."""
    n = number // 3 if number % 3 == 0 else number + 0.5
    return {"id": number, "who": f"p{number % 7}", "n": n, "at": format_rfc3339(BASE + number * SECOND)}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a data folder with two files, each of several small row groups."""
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)), wall=BASE + 3600 * SECOND)
    for begin in (0, COUNT // 2):
        world.ingest("c/in", [document(number) for number in range(begin, begin + COUNT // 2)])
    for file in world.root.rglob("*.parquet"):
        pq.write_table(pq.read_table(file), file, row_group_size=GROUP)
    yield world
    world.store.close()


def scanned(world: World, bounds: ScanBounds) -> list[int]:
    """Return the ids of the documents of a scan."""
    rows = sorted(scan(world.store, world.catalog.collections["c/in"], bounds))
    return [(row.clock - BASE) // SECOND for row in rows]


def in_values(column: TypedColumn, *values: Any) -> Match:
    return Match(values={column: column_values(column, values)})


BOUNDS: dict[str, tuple[ScanBounds, Callable[[int], bool]]] = {
    "all": (ScanBounds(), lambda number: True),
    "times": (ScanBounds(BASE + 5 * SECOND, BASE + 38 * SECOND), lambda number: 5 <= number < 38),
    "ticks": (ScanBounds(ticks=Ticks(np.array([BASE // SECOND + 9, BASE // SECOND + 41]), SECOND)), {9, 41}.__contains__),
    "adjusted ticks": (ScanBounds(ticks=Ticks(np.array([BASE // SECOND]), SECOND), offset=-7 * SECOND), {7}.__contains__),
    "keys": (ScanBounds(match=Match.of_keys(map(pack, ([3], [50], [99])))), {3, 50}.__contains__),
    "keys of some times": (ScanBounds(BASE + 4 * SECOND, match=Match.of_keys(map(pack, ([3], [50])))), {50}.__contains__),
    "values": (ScanBounds(match=in_values(WHO, "p2", "p5")), lambda number: number % 7 in (2, 5)),
    "values or inexact values": (ScanBounds(match=in_values(N, 7.5)), lambda number: number == 7 or number % 3 == 0),
    "two columns": (
        ScanBounds(match=Match(values={c: column_values(c, [v]) for c, v in ((WHO, "p0"), (N, 7.5))})),
        lambda number: number % 7 == 0 and (number == 7 or number % 3 == 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDS)
def test_scan_returns_the_rows_within_bounds(name: str, world: World) -> None:
    bounds, is_desired = BOUNDS[name]

    assert scanned(world, bounds) == [number for number in range(COUNT) if is_desired(number)]


def test_scan_returns_documents_as_they_are_stored(world: World) -> None:
    (row,) = scan(world.store, world.catalog.collections["c/in"], ScanBounds(match=Match.of_keys([pack([9])])))

    text = '{"id":9,"who":"p2","n":3,"at":"2024-01-01T00:00:09.000000Z"}'
    assert row == StoredDocument(BASE + 9 * SECOND, row.seq, pack([9]), text)


@pytest.mark.parametrize(
    ("bounds", "columns"),
    [
        (ScanBounds(match=Match.of_keys([pack([9])])), {"key": 1, "doc": 1}),
        (ScanBounds(match=in_values(WHO, "nobody")), {"who": COUNT // GROUP + 1, "doc": 0}),
        (ScanBounds(end=BASE + 3 * SECOND), {"clock": 1, "doc": 1}),
        (ScanBounds(end=BASE + 4 * SECOND, match=in_values(WHO, "nobody")), {"clock": 0, "who": 1, "doc": 0}),
    ],
)
def test_scan_reads_columns_of_few_row_groups(
    bounds: ScanBounds, columns: dict[str, int], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    plain = scanning._columns

    def counted(file: pq.ParquetFile, number: int, names: list[str]) -> dict[str, pa.ChunkedArray]:
        read.extend(names)
        return plain(file, number, names)

    monkeypatch.setattr(scanning, "_columns", counted)
    scanned(world, bounds)

    assert {name: read.count(name) for name in columns} == columns


def test_scan_ends_its_threads_before_its_last_row(world: World) -> None:
    rows = scan(world.store, world.catalog.collections["c/in"], ScanBounds())
    next(rows)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("scan")]

    del rows

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("scan")]
