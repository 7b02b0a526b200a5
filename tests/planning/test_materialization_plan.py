"""Plans of materializations agree with runs, and name the edited parts of their definitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from conftest import LATER, World, write_catalog

from derive.catalog import load
from derive.engine.reset import reset
from derive.engine.run import Run
from derive.errors import UnacceptedError
from derive.planning.differences import TaskPlan
from derive.planning.plan import plan_tasks
from derive.protocol.definition_text import definition_of_materialization

CATALOG = """
collections:
  w/orders:
    key: [/id]
    schema:
      type: object
      required: [id]
      reduce: {strategy: merge}
      properties: {id: {type: integer}, paid: {type: integer, reduce: {strategy: sum}}, note: {type: string}}
materializations:
  w/reports:
    endpoint: {connector: {image: materialize-sqlite, config: {path: reports.db}}}
    bindings:
      - {resource: {table: orders}, source: w/orders}
      - {resource: {table: others}, source: w/orders}
"""
FIRST = "{resource: {table: orders}, source: w/orders}"
SECOND = "{resource: {table: others}, source: w/orders}"
NAME = "w/orders -> orders"


def plan_of(world: World, text: str) -> TaskPlan:
    """Plan a catalog, which becomes that of the world."""
    world.catalog = load(write_catalog(world.root.parent, text))
    return next(plan for plan in plan_tasks(world.store, world.catalog) if plan.name == "w/reports")


def run(world: World) -> bool:
    """Run the world's catalog; return whether the run refuses the materialization until its edit is accepted."""
    world.wall += 5_000_000
    with closing(world.run(shards=1)) as at_work:
        error = at_work.tasks["w/reports"].beginning.error
        at_work.step()
        assert error is not None or _failure(at_work) is None
    return isinstance(error, UnacceptedError)


def _failure(at_work: Run) -> object:
    return at_work.tasks["w/reports"].error


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A data folder in which the catalog has run."""
    folder = tmp_path_factory.mktemp("reports")
    world = World(folder / ".flow", load(write_catalog(folder, CATALOG)), wall=LATER)
    world.ingest("w/orders", [{"id": 1, "paid": 2, "note": "a"}], clock=None)
    with closing(world.store):
        assert not run(world)
        yield world


NEW = "new documents"
BOTH = "source: w/orders}\n      - {resource: {table: others"
EDITS = [
    (FIRST, FIRST[:-1] + ", priority: 2}", f"{NAME}: priority", "nothing"),
    (FIRST, FIRST[:-1] + ", onSourceReset: follow}", f"{NAME}: onSourceReset", "nothing"),
    (FIRST, FIRST[:-1] + ", fields: {recommended: false}}", f"{NAME}: fields/recommended", "endpoint"),
    (FIRST, FIRST[:-1] + ", fields: {exclude: [note]}}", f"{NAME}: fields/exclude", "endpoint"),
    (FIRST, FIRST[:-1] + ", fields: {groupBy: [id]}}", f"{NAME}: key", "endpoint"),
    (
        FIRST,
        "{resource: {table: orders, delta_updates: false}, source: w/orders}",
        f"{NAME}: resource/delta_updates",
        "endpoint",
    ),
    (BOTH, BOTH.replace("w/orders", "{name: w/orders, notAfter: 2090-01-01T00:00:00Z}"), f"{NAME}: notAfter", NEW),
    (BOTH, BOTH.replace("w/orders", "{name: w/orders, notBefore: 2020-01-01T00:00:00Z}"), f"{NAME}: notBefore", NEW),
    (f"      - {SECOND}\n", "", "w/orders -> others", "nothing"),
    (f"{FIRST}\n      - {SECOND}", f"{SECOND}\n      - {FIRST}", "order of bindings", "nothing"),
    (FIRST, FIRST.replace("orders}", "third}", 1), "w/orders -> third", "from the start"),
    ("{path: reports.db}", "{path: other.db}", "endpoint/config/path", "endpoint"),
    ("materialize-sqlite", "example.com/materialize-sqlite:v2", "endpoint/image", "nothing"),
    ("bindings:", "shards: {maxTxnDuration: 2s}\n    bindings:", "shards.maxTxnDuration", "nothing"),
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("old", "new", "part", "effect"), EDITS, ids=[f"{edit[2]} {edit[3]}" for edit in EDITS])
def test_plan_of_an_edited_materialization_agrees_with_the_run(
    ran: World, old: str, new: str, part: str, effect: str
) -> None:
    assert CATALOG.count(old) == 1
    edited = CATALOG.replace(old, new)
    plan = plan_of(ran, edited)

    assert (part, effect) in [(change.part, change.effect) for change in plan.changes]
    assert plan.status == "changed"
    assert not run(ran)
    assert plan_of(ran, edited).changes == ()
    plan_of(ran, CATALOG)
    assert not run(ran)
    assert plan_of(ran, CATALOG).changes == ()


def test_waiting_materialization_keeps_its_applied_definition(ran: World) -> None:
    """A run refuses exactly the edits that the plan shows as waiting, and remembers the definition before them."""
    applied = ran.store.applied("w/reports")
    for old, new in (("strategy: sum", "strategy: maximize"), (", note: {type: string}", "")):
        edited = CATALOG.replace(old, new).replace(FIRST, FIRST[:-1] + ", priority: 1}")
        plan = plan_of(ran, edited)

        assert plan.status == "waits"
        assert {(NAME, "waits"), (f"{NAME}: priority", "nothing")} <= {(one.part, one.effect) for one in plan.changes}
        assert run(ran)
        assert ran.store.applied("w/reports") == applied
    assert plan_of(ran, CATALOG).status == "unchanged"


def test_definition_of_a_materialization_has_no_passwords(tmp_path: Path) -> None:
    text = CATALOG.replace("{path: reports.db}", '{path: reports.db, password: hunter2, token: "${env:TOKEN}"}')
    catalog = load(write_catalog(tmp_path, text))
    written = definition_of_materialization(catalog.materializations["w/reports"]).text

    assert "hunter2" not in written
    assert '"config":{"path":"reports.db","password":"***","token":"${env:TOKEN}"}' in written


def test_reset_forgets_the_applied_definition(tmp_path: Path) -> None:
    world = World(tmp_path / ".flow", load(write_catalog(tmp_path, CATALOG)), wall=LATER)
    with closing(world.store):
        assert not run(world)
        assert world.store.applied("w/reports") is not None
        reset(world.catalog, world.store, ["w/reports"])

        assert world.store.applied("w/reports") is None
