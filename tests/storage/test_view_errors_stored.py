"""Errors in the place of rows, as Storage has them: who reads at a time, who follows, and what compaction forgets."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from conftest import define
from reduction_oracle import contents_in_memory

from derive.contents.reads import ReadOptions, read_rows
from derive.contents.reads import subscribe_at as follow
from derive.contents.table_updates import subscribe_at
from derive.document.key import pack
from derive.errors import FrontierError, ViewError
from derive.storage.compaction import compact
from derive.storage.metadata.definitions import Definitions
from derive.storage.metadata.owner import Door
from derive.storage.store import Store
from derive.storage.table_types import ErrorUpdate, RowUpdate, Table, TableColumn, TableUpdate

pytestmark = pytest.mark.both_databases

DIVISION = ("22012", "division by zero")
CAST = ("22P02", 'invalid input syntax for type integer: "x"')


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", wall=lambda: 1_000, durable=False)


@pytest.fixture
def view(store: Store) -> Table:
    """A view with one row from 1100 on, an error at [1200, 1300), another at [1250, 1400), and one from 1500 on."""
    view = store.tables.create("sql/public/v", [TableColumn("n", "bigint")], view_of=())
    write(store, view, 1_200, rows={1_100: 1})
    write(store, view, 1_260, errors=[(1_200, DIVISION, 1), (1_250, CAST, 1)])
    write(store, view, 1_450, rows={1_400: 2}, errors=[(1_300, DIVISION, -1), (1_400, CAST, -1)])
    write(store, view, 1_600, errors=[(1_500, DIVISION, 1)])
    return view


def write(
    store: Store,
    view: Table,
    end: int,
    rows: dict[int, int] | None = None,
    errors: list[tuple[int, tuple[str, str], int]] | None = None,
) -> None:
    changes = [RowUpdate(clock, orjson.dumps({"n": n}).decode(), pack([n]), 1) for clock, n in (rows or {}).items()]
    failures = [ErrorUpdate(clock, *error, diff) for clock, error, diff in errors or []]
    store.tables.commit(
        [TableUpdate(view.id, store.upper(view.name), end, tuple(changes), tuple(failures))], Door.DATAFLOW
    )


def at(store: Store, view: Table, time: int) -> list[object] | str:
    """The rows at a time, or the SQLSTATE of the error."""
    try:
        rows = list(read_rows(store, view.spec, ReadOptions(as_of=time)))
    except ViewError as error:
        return error.sqlstate
    return [document["n"] for _, document in contents_in_memory(view.spec, iter(rows))]


TIMES = (1_150, 1_199, 1_200, 1_249, 1_250, 1_299, 1_300, 1_399, 1_400, 1_499, 1_500, 1_599)
EXPECTED = [[1], [1], "22012", "22012", "22012", "22012", "22P02", "22P02", [1, 2], [1, 2], "22012", "22012"]


def test_read_fails_only_while_a_view_has_an_error(store: Store, view: Table) -> None:
    assert [at(store, view, time) for time in TIMES] == EXPECTED
    known = store.collection(view.name)
    assert known is not None
    assert (known.upper, known.sound) == (1_600, 1_500)
    assert known.failure is not None
    assert "clock 1500" in str(known.failure[1].detail)


def test_following_read_returns_rows_before_the_first_error(store: Store, view: Table) -> None:
    read = store.tables.read_on(view.id, 1_000)
    assert read is not None
    assert (read.upper, [row[0] for row in read.appended]) == (1_600, [1_100])
    assert read.failure is not None
    assert (read.failure[0], read.failure[1].sqlstate) == (1_200, "22012")
    assert store.tables.read_on(view.id, 1_600) is None
    assert store.tables.read_on(view.id + 1, 1_000) is None


def test_compaction_drops_past_errors_and_keeps_the_time_of_present_errors(store: Store, view: Table) -> None:
    compact(store, view.spec, since=1_300, grace=0)
    assert [at(store, view, time) for time in TIMES[6:]] == EXPECTED[6:]
    failure = store.tables.first_error(view.name, 0, 1_500)
    assert failure is not None
    assert (failure[0], failure[1].message) == (1_250, CAST[1])

    compact(store, view.spec, since=1_550, grace=0)
    with pytest.raises(FrontierError):
        store.capabilities.acquire_read(view.id, 1_549)
    failure = store.tables.first_error(view.name, 1_550, 1_551)
    assert failure is not None
    assert "clock 1500" in str(failure[1].detail)


def test_followers_read_up_to_a_present_error(store: Store, view: Table) -> None:
    reported: list[object] = []
    with pytest.raises(ViewError, match="division by zero"):
        for update in follow(store, view.spec, ReadOptions(), lambda: None):
            reported.append(update if isinstance(update, int) else update.texts.to_pylist())
    assert reported == [['{"n":1}', '{"n":2}'], 1_500]

    frontiers: list[int] = []
    capability = store.capabilities.acquire_read(view.id, 1_150)
    with pytest.raises(ViewError):
        for part in subscribe_at(store, capability, lambda: None, has_snapshot=False):
            frontiers += [part] if isinstance(part, int) else [update.clock for update in part]
    assert frontiers == [1_400, 1_500]

    write(store, view, 1_800, rows={1_700: 3}, errors=[(1_700, DIVISION, -1)])
    subscription = follow(store, view.spec, ReadOptions(since=1_500), lambda: None)
    rows, frontier = next(subscription), next(subscription)
    assert not isinstance(rows, int)
    assert (rows.texts.to_pylist(), frontier) == (['{"n":3}'], 1_800)
    subscription.close()


def test_seals_do_not_advance_views(store: Store, view: Table) -> None:
    table = store.tables.create("sql/public/t", [TableColumn("n", "bigint")])

    assert store.seal([view.name, table.name], 5_000) == {view.name: 1_600, table.name: 5_000}


def test_dropped_view_leaves_no_error_and_no_capability(store: Store, view: Table) -> None:
    table = store.tables.create("sql/public/t", [TableColumn("n", "bigint")])
    other = store.tables.create("sql/public/w", [TableColumn("n", "bigint")], view_of=[table.name])
    assert set(store.task_capabilities.dataflows("view")) == {other.id}
    define(store, Definitions(dropped=(view.id, other.id)))

    assert store.task_capabilities.dataflows("view") == {}
    assert store.tables.errors(view.id) == {}
