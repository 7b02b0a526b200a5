"""Plans agree with runs: a run does not start the tasks that a plan shows as waiting, and has no note on unchanged ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from conftest import World, examples, write_catalog
from edited_catalogs import BASE, SECOND, changing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stateful_catalogs import DERIVED, HEAD, Derived

from derive.catalog import load
from derive.engine.inputs import settle
from derive.engine.reset import reset
from derive.engine.run import Run
from derive.errors import UnacceptedError
from derive.planning.differences import TaskPlan
from derive.planning.plan import plan_tasks
from derive.planning.status import task_row
from derive.protocol.specs import CatalogSpec

NAMES = ("copies", "again", "third")


@dataclass(frozen=True)
class Edited:
    """A derivation: the edits of `test_edited_runs`, and those of its transform.

    Attributes:
        derived: the source, the lambda, the schema, and whether it is disabled.
        transform: name of the transform.
        more: further properties of the transform.
    """

    derived: Derived = field(default_factory=partial(Derived, "numbers", 0))
    transform: str = "from"
    more: str = "backfill: 0"

    def text(self, name: str, known: Sequence[str]) -> str:
        source = self.derived.source if self.derived.source in known else "numbers"
        parts = {
            "NAME": name,
            "SOURCE": source,
            "ADDED": str(100 + self.derived.added),
            "OTHER": self.derived.other,
            "DISABLED": str(self.derived.is_disabled).lower(),
            "- name: from\n": f"- name: {self.transform}\n          {self.more}\n",
        }
        text = DERIVED
        for old, new in parts.items():
            text = text.replace(old, new)
        return text


Defined = dict[str, Edited]

edits = st.builds(
    Edited,
    derived=st.builds(
        Derived,
        source=st.sampled_from(["numbers", "numbers", *NAMES]),
        added=st.integers(0, 1),
        other=st.sampled_from(["other", "another"]),
        is_disabled=st.sampled_from([False, False, False, True]),
    ),
    transform=st.sampled_from(["from", "from", "of"]),
    more=st.sampled_from(["backfill: 0", "backfill: 0", "backfill: 1", "readDelay: 2s", "priority: 1"]),
)
catalogs = st.dictionaries(st.sampled_from(NAMES), edits)


def text_of(defined: Defined) -> str:
    return HEAD + "".join(one.text(name, list(defined)) for name, one in defined.items())


def world_of(folder: Path, text: str) -> World:
    return World(folder / "data", load(write_catalog(folder, text)), wall=BASE)


def run(world: World, accepted: Sequence[str] = ()) -> None:
    """Process three more documents; each task reads them."""
    first = world.wall
    with closing(world.run(shards=1, accepted=accepted)) as at_work:
        world.ingest("a/numbers", [{"id": first + n, "n": n % 2} for n in range(3)], clock=None)
        for _ in range(3):
            world.wall += 6 * SECOND
            at_work.step()


def statuses(plans: Sequence[TaskPlan]) -> dict[str, str]:
    return {plan.name: plan.status for plan in plans}


def waiting_tasks(run: Run) -> set[str]:
    return {name for name, task in run.tasks.items() if isinstance(task.beginning.error, UnacceptedError)}


def compare(world: World, edited: CatalogSpec, *, is_accepted: bool) -> None:
    """Plan a catalog, apply it to a run of the former one and start a run with it, and compare all three."""
    planned = statuses(plan_tasks(world.store, edited))
    accepted = [name for name in edited.tasks if is_accepted]
    watched, reconciler = changing(world)
    with closing(watched):
        reconciler.apply(watched, edited)
        begun = {name: task.beginning for name, task in watched.tasks.items()}
        refused = waiting_tasks(watched)
    world.catalog = edited
    with closing(world.run(shards=1)) as opened:
        assert waiting_tasks(opened) == refused
    assert refused == {name for name, status in planned.items() if status == "waits"}
    assert all(one.error is None for name, one in begun.items() if name not in refused)
    assert "refused" not in planned.values()
    for name, one in begun.items():
        if planned[name] == "unchanged":
            assert (one.again, one.compacted, one.edits) == ((), (), ())
    run(world, accepted)
    after = statuses(plan_tasks(world.store, world.catalog))
    waiting = set() if is_accepted else refused
    if "disabled" not in planned.values():  # the readers of a disabled task may have nothing to commit
        assert {name: after[name] for name in world.catalog.tasks} == {
            name: "waits" if name in waiting else "unchanged" for name in world.catalog.tasks
        }


@settings(max_examples=examples(60, 6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(catalogs, min_size=2, max_size=4), is_accepted=st.booleans())
@example(history=[{"copies": Edited()}, {"copies": Edited(transform="of")}], is_accepted=False)
@example(history=[{"copies": Edited()}, {"copies": Edited(more="backfill: 1")}, {"copies": Edited()}], is_accepted=True)
def test_a_plan_agrees_with_the_run(history: list[Defined], is_accepted: bool) -> None:
    """A run leaves out the tasks that a plan shows as waiting, and has no note on those that it shows as unchanged."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = world_of(folder, text_of(history[0]))
        with closing(world.store):
            run(world)
            for defined in history[1:]:
                compare(world, load(write_catalog(folder, text_of(defined))), is_accepted=is_accepted)


def plan_of(world: World, name: str = "a/copies") -> TaskPlan:
    return next(plan for plan in plan_tasks(world.store, world.catalog) if plan.name == name)


def edited(folder: Path, before: str, after: str, **options: int) -> tuple[World, TaskPlan]:
    world = world_of(folder, before)
    with closing(world.run(shards=options.get("shards", 1))) as at_work:
        world.ingest("a/numbers", [{"id": n, "n": n % 2} for n in range(4)], clock=None)
        world.wall += 6 * SECOND
        at_work.step()
    assert plan_of(world).status == "unchanged"
    world.catalog = load(write_catalog(folder, after))
    return world, plan_of(world)


PLAIN = text_of({"copies": Edited()})


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A data folder in which the plain catalog has run."""
    world, _ = edited(tmp_path_factory.mktemp("ran"), PLAIN, PLAIN)
    with closing(world.store):
        yield world


NEW = "new documents"
CHANGES = [
    ("- name: from", "- name: of", "of: name", "waits"),
    ("- name: from", "- name: of\n          formerly: from", "of: name", "nothing"),
    (
        "- name: from",
        '- {name: more, source: a/numbers, shuffle: any, formerly: x, lambda: "SELECT $n"}\n        - name: from',
        "more",
        "waits",
    ),
    ("SELECT $n + 100", "SELECT $n + 200", "from: lambda", NEW),
    ("shuffle: {key: [/n]}", "shuffle: {key: [/id]}", "from: shuffle", NEW),
    ("backfill: 0", "backfill: 2", "from: backfill", "from the start"),
    ("backfill: 0", "readDelay: 5s", "from: readDelay", NEW),
    ("backfill: 0", "priority: 5", "from: priority", NEW),
    ("source: a/numbers", "source: {name: a/numbers, notBefore: 2020-01-01T00:00:00Z}", "from: notBefore", NEW),
    ("source: a/numbers", "source: {name: a/numbers, notAfter: 2030-01-01T00:00:00Z}", "from: notAfter", NEW),
    ("source: a/numbers", "source: a/numbers\n          onSourceReset: follow", "from: onSourceReset", "nothing"),
    ('times INTEGER);"]', 'times INTEGER);", "CREATE TABLE u (n);"]', "migration 1", NEW),
    ("times INTEGER);", "times INT);", "migration 0", "refused"),
    ("{disable: false}", "{maxTxnDuration: 2s}", "shards.maxTxnDuration", NEW),
    ("reduce: {strategy: sum}", "reduce: {strategy: maximize}", "reduction of /times", NEW),
    ("other: {}", "other: {type: string}", "schema /properties/other/type", NEW),
    ("other: {}", "other: {description: text}", "schema /properties/other/description", "nothing"),
    ("n: {type: integer}, other", "n: {type: integer, minimum: 0}, other", "schema /properties/n/minimum", NEW),
    ("key: [/id]", "key: [/id, /n]", "the next run", "refused"),
    (
        "{id: {type: integer}, n: {type: integer}}",
        "{id: {type: integer}, n: {type: integer, minimum: 0}}",
        "schema of a/numbers: /properties/n/minimum",
        NEW,
    ),
]


@pytest.mark.parametrize(("old", "new", "part", "effect"), CHANGES, ids=[f"{new[2]} {new[1][:20]}" for new in CHANGES])
def test_a_change_has_its_part_and_effect(
    ran: World, old: str, new: str, part: str, effect: str, tmp_path: Path
) -> None:
    assert PLAIN.count(old) == 1
    ran.catalog = load(write_catalog(tmp_path, PLAIN.replace(old, new)))
    plan = plan_of(ran)
    assert (part, effect) in [(change.part, change.effect) for change in plan.changes]
    assert plan.status == (effect if effect in ("waits", "refused") else "changed")


def test_a_refused_key_of_an_ingested_source_offers_no_commands(ran: World, tmp_path: Path) -> None:
    """Neither a reset nor a shadow of the task settles the key of its source."""
    ran.catalog = load(write_catalog(tmp_path, PLAIN.replace("key: [/id]", "key: [/id, /n]")))
    plan = plan_of(ran)
    assert ("key of a/numbers", "refused") in [(change.part, change.effect) for change in plan.changes]
    assert plan.commands == ()


def test_refused_key_of_a_derivation_offers_a_cascade_and_readers_no_reset(tmp_path: Path) -> None:
    """The way out of the error is the command of the plan; a reset of a reader alone does not help."""
    derived = {"copies": Edited(), "again": Edited(Derived("copies", 0))}
    text = text_of(derived).replace("[n]\n", "[n, other]\n").replace("other: {}", "other: {type: integer}")
    text = text.replace("AS n, times FROM", "AS n, 1 AS other, times FROM")
    world, _ = edited(tmp_path, text, text.replace("    key: [/n]\n", "    key: [/n, /other]\n", 1))
    partitioned = "    key: [/n]\n    projections: {n: {location: /n, partition: true}}\n"
    with closing(world.store):
        plan, reader = plan_of(world), plan_of(world, "a/again")
        catalog = load(write_catalog(tmp_path, text.replace("    key: [/n]\n", partitioned, 1)))
        plans = plan_tasks(world.store, catalog)
        rows = [task_row(world.store, spec) for spec in world.catalog.derivations.values()]
    command = "flowctl reset --task a/copies --cascade"
    assert [(one.status, (command, "to start over") in one.commands) for one in plans] == [
        ("refused", True),
        ("refused", False),
    ]
    assert (plan.status, reader.status) == ("refused", "refused")
    assert (command, "to start over") in plan.commands
    assert "to start over" not in [purpose for _, purpose in reader.commands]
    assert [row["state"] for row, _ in rows] == ["failed", "failed"]
    assert all(
        error is not None and error.hint is not None and error.hint.endswith(f": {command}") for _, error in rows
    )


def test_a_change_counts_the_documents_to_read(tmp_path: Path) -> None:
    world, plan = edited(tmp_path, PLAIN, PLAIN.replace("backfill: 0", "backfill: 1"))
    with closing(world.store):
        (change,) = plan.changes
        assert (change.documents, plan.documents) == (4, 4)
        assert plan.rate is not None
        assert plan.seconds(change.documents) == 4 / plan.rate
        assert ("flowctl reset --task a/copies", "to start over") in plan.commands
        assert ("flowctl run --shadow", "to replace the documents at one time") in plan.commands


def test_an_edited_lambda_is_a_diff(tmp_path: Path) -> None:
    world, plan = edited(tmp_path, PLAIN, PLAIN.replace("$n + 100", "$n + 200"))
    with closing(world.store):
        (change,) = plan.changes
        assert change.diff == (
            " INSERT INTO t VALUES ($n, 1) ON CONFLICT DO UPDATE SET times = times + 1;",
            "-SELECT $n + 100 AS n, times FROM t WHERE n = $n AND $n < 900;",
            "+SELECT $n + 200 AS n, times FROM t WHERE n = $n AND $n < 900;",
        )


def test_a_shuffle_of_several_shards_with_state_is_refused(tmp_path: Path) -> None:
    after = PLAIN.replace("shuffle: {key: [/n]}", "shuffle: {key: [/id]}")
    world, plan = edited(tmp_path, PLAIN, after, shards=2)
    with closing(world.store), closing(world.run()) as opened:
        assert plan.status == "refused"
        error = opened.tasks["a/copies"].beginning.error
        assert error is not None
        assert error.message in plan.changes[-1].meaning


def test_a_renamed_derivation_is_found_by_likeness(tmp_path: Path) -> None:
    world, plan = edited(tmp_path, PLAIN, PLAIN)
    world.catalog = load(write_catalog(tmp_path, text_of({"others": Edited()})))
    with closing(world.store):
        plan, removed = plan_tasks(world.store, world.catalog)
        assert (plan.name, plan.status, plan.former, plan.documents) == ("a/others", "added", "a/copies", 4)
        assert (removed.name, removed.status) == ("a/copies", "removed")
        assert "probably renamed to 'a/others'" in removed.changes[0].meaning
        settle(world.catalog, world.store)  # as `flowctl compact` does
        assert statuses(plan_tasks(world.store, world.catalog)) == {"a/others": "added"}


def test_without_a_stored_definition_fingerprints_are_compared(tmp_path: Path) -> None:
    world, _ = edited(tmp_path, PLAIN, PLAIN)
    with closing(world.store):
        database = world.store._metadata  # as in a folder of before definitions were stored
        with database.transaction() as db:
            db.execute("DELETE FROM history")
        plan = plan_of(world)
        assert plan.status == "unchanged"
        assert "is not stored" in plan.notes[0]
        world.catalog = load(write_catalog(tmp_path, PLAIN.replace("$n + 100", "$n + 200")))
        (change,) = plan_of(world).changes
        assert (change.part, change.effect) == ("from", "new documents")
        world.catalog = load(write_catalog(tmp_path, PLAIN.replace("- name: from", "- name: of")))
        plan = plan_of(world)
        assert (plan.status, plan.changes[0].effect) == ("waits", "waits")


def test_a_reset_task_is_added_again(tmp_path: Path) -> None:
    world, _ = edited(tmp_path, PLAIN, PLAIN)
    with closing(world.store):
        reset(world.catalog, world.store, ["a/copies"])
        assert plan_of(world).status == "added"
