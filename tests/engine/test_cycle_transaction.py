"""Joint transactions: a cycle that goes on as one publishes what its tasks publish one transaction after the other."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import LATER, World, write_catalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_catalogs import BASE, SECOND, SOURCE, cyclic_catalogs, histories
from typing_extensions import override

from derive.catalog import load
from derive.document.clock import format_rfc3339, parse_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.inputs import look
from derive.engine.run import Run
from derive.engine.task_reconciler import open_run
from derive.engine.transactor import Committed
from derive.errors import FlowError, LostError
from derive.materialize.stages import AnyPlan
from derive.shard.progress import Message, Progress
from derive.storage.task_log import recent_entries
from derive.time.extent import Limits

Documents = list[dict[str, Any]]

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "4"))
SLOW = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


class Counts(InProcessExecutor):
    """Counts transactions by their shape, and fails where a joint one fails."""

    def __init__(self) -> None:
        self.shapes: list[str] = []

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        messages = super().execute(plan, progress)
        self.shapes.append(plan.shape)
        assert [message.error for message in messages if message.error] == []
        return messages


def world_of(folder: Path, name: str, text: str) -> World:
    return World(folder / name, load(write_catalog(folder, text)))


def step(world: World, shards: int, limits: Limits | None, *, jointly: bool) -> list[str]:
    """Run everything as far as it goes, each task by itself unless it is done jointly; shapes of the transactions."""
    executor = Counts()
    run = open_run(world.catalog, world.store, executor, shards=shards, limits=limits)
    if not jointly:
        run = Run(world.catalog, world.store, run.tasks)
    run.step()
    errors = [task.error for task in run.tasks.values() if task.error]
    run.close()
    assert errors == []
    return executor.shapes


def state_of(world: World) -> dict[str, Any]:
    """All that a run leaves behind: what was published, how far that is known, and how far tasks are."""
    states: dict[str, Any] = {}
    for name, digest in world.digest().items():
        task = world.store.task(name)
        assert task
        counts = (task.documents_in, task.documents_out)
        states[name] = (digest, world.store.upper(name), task.positions, counts)
    return states


def live(world: World, documents: Documents, cuts: list[int], shards: int, limits: Limits, *, jointly: bool) -> Any:
    """What is left behind after each piece of a history that arrives in several."""
    states = []
    for begin, end in zip([0, *cuts], [*cuts, len(documents)], strict=True):
        if begin < end:
            world.ingest(SOURCE, documents[begin:end])
        last = parse_rfc3339(documents[end - 1]["at"]) + 1 if end else SECOND
        world.wall = last if end < len(documents) else LATER
        step(world, shards, limits, jointly=jointly)
        states.append(state_of(world))
    world.store.close()
    return states


@st.composite
def cut_histories(draw: st.DrawFn) -> tuple[Documents, list[int]]:
    """A history, and where it is cut into pieces that arrive one after the other."""
    documents = draw(histories())
    possible = [place for place in range(1, len(documents)) if documents[place]["at"] != documents[place - 1]["at"]]
    return documents, sorted(draw(st.sets(st.sampled_from(possible), max_size=3))) if possible else []


@SLOW
@given(cyclic_catalogs(priorities=True), cut_histories(), st.sampled_from([1, 1, 2, 3]))
def test_l1_cycle_transactions_equal_transactions_of_single_tasks(
    text: str, history: tuple[Documents, list[int]], shards: int
) -> None:
    documents, cuts = history
    with tempfile.TemporaryDirectory() as folder:
        one_by_one = world_of(Path(folder), "one-by-one", text)
        expected = live(one_by_one, documents, cuts, shards, Limits(), jointly=False)
        jointly = world_of(Path(folder), "jointly", text)
        assert live(jointly, documents, cuts, shards, Limits(), jointly=True) == expected


@SLOW
@given(
    cyclic_catalogs(),
    cut_histories(),
    st.sampled_from([1, 3]),
    st.builds(
        Limits,
        documents=st.sampled_from([1, 2, 5]),
        bytes=st.sampled_from([2000, 1 << 20]),
        segments=st.sampled_from([1, 8192]),
        small_documents=st.sampled_from([0, 1, 3, 1000]),
    ),
)
def test_l1_division_of_cycle_transactions_does_not_change_results(
    text: str, history: tuple[Documents, list[int]], shards: int, limits: Limits
) -> None:
    documents, cuts = history
    with tempfile.TemporaryDirectory() as folder:
        one_by_one = world_of(Path(folder), "one-by-one", text)
        expected = live(one_by_one, documents, cuts, shards, Limits(), jointly=False)
        jointly = world_of(Path(folder), "jointly", text)
        assert live(jointly, documents, cuts, shards, limits, jointly=True) == expected


NUMBERS = "{type: object, required: [id, n], properties: {id: {type: integer}, n: {type: integer}, at: {type: string}}}"
PING_PONG = f"""
collections:
  j/numbers: {{schema: {NUMBERS}, key: [/id]}}
  j/ping:
    schema: {NUMBERS}
    key: [/id]
    derive:
      using: {{sqlite: {{migrations: ["CREATE TABLE seen (id INTEGER PRIMARY KEY, n INTEGER);"]}}}}
      transforms:
        - {{name: begin, source: j/numbers, shuffle: {{key: [/id]}}, lambda: "INSERT INTO seen VALUES ($id, $n) RETURNING id, n;"}}
        - {{name: again, source: j/pong, shuffle: {{key: [/id]}}, lambda: "SELECT $id, $n - 1 AS n WHERE $n > 0;"}}
  j/pong:
    schema: {NUMBERS}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: back, source: j/ping, shuffle: any, lambda: "SELECT $id, $n WHERE abs($n - 5 - 9223372036854775807 * ($id = 3)) > 0;"}}
"""
HOUR = 3_600 * SECOND


def hourly(world: World, *values: int) -> None:
    """Ingest numbers, an hour apart."""
    documents = [{"id": place, "n": n, "at": format_rfc3339(BASE + place * HOUR)} for place, n in enumerate(values)]
    world.ingest("j/numbers", documents)


def test_a_cycle_is_one_transaction_and_one_commit(tmp_path: Path) -> None:
    world = world_of(tmp_path, "data", PING_PONG)
    hourly(world, *[2] * 20)
    executor = Counts()
    run = open_run(world.catalog, world.store, executor)
    run.step()
    run.close()

    assert executor.shapes == ["cycle"]
    assert [run.tasks[name].shards for name in ("j/ping", "j/pong")] == [1, 1]
    ping, pong = (world.store.task(name) for name in ("j/ping", "j/pong"))
    assert ping
    assert pong
    assert (ping.documents_in, ping.documents_out, ping.transactions) == (80, 60, 1)
    assert (pong.documents_in, pong.documents_out, pong.transactions) == (60, 60, 1)
    assert [row[0] - BASE for row in world.rows("j/pong")[:4]] == [SECOND, 3 * SECOND, 5 * SECOND, HOUR + SECOND]
    assert [entry["message"] for entry in recent_entries(world.root, "j/pong")] == ["committed"]


def test_cycle_transaction_looks_at_enough_segments(tmp_path: Path) -> None:
    """A source is unknown from the first segment on that was left out; what the cycle itself publishes is all read."""
    world = world_of(tmp_path, "data", PING_PONG)
    for place in range(6):
        at = format_rfc3339(BASE + place * HOUR)
        world.ingest("j/numbers", [{"id": place, "n": 1, "at": at}])
    run = open_run(world.catalog, world.store, InProcessExecutor(), limits=Limits(segments=2))
    task = run.tasks["j/ping"]

    inputs = task.look(is_joint=True)
    begin, again = task.spec.inputs
    assert [segment.clock_min - BASE for segment in inputs.segments[begin.index]] == [0, HOUR, 2 * HOUR]
    assert inputs.uppers["j/numbers"] - BASE == 3 * HOUR
    run.step()
    assert inputs.uppers["j/pong"] == 0
    assert len(world.rows("j/pong")) == 12
    before = look(world.store, task.spec, {}, limits=Limits(segments=1), is_joint=True)
    assert len(before.segments[again.index]) == world.store.collection("j/pong").segments > 1  # type: ignore[union-attr]
    run.close()


def test_cycle_goes_on_where_limits_cut_the_look_of_one_task(tmp_path: Path) -> None:
    """The delayed task sees a part of the source, beyond which a cycle transaction does not read for the other task."""
    transforms = """[
        {name: begin, source: j/numbers, shuffle: {key: [/id]}, lambda: "SELECT $id, $n;", readDelay: DELAY},
        {name: again, source: j/PEER, shuffle: {key: [/id]}, lambda: "SELECT $id, $n - 1 AS n WHERE $n > 0;"},
    ]"""
    text = f"collections:\n  j/numbers: {{schema: {NUMBERS}, key: [/id]}}\n"
    for name, peer, delay in (("ping", "pong", "3s"), ("pong", "ping", "0s")):
        derive = f"{{using: {{sqlite: {{}}}}, transforms: {transforms.replace('PEER', peer).replace('DELAY', delay)}}}"
        text += f"  j/{name}: {{schema: {NUMBERS}, key: [/id], derive: {derive}}}\n"
    worlds = [world_of(tmp_path, name, text) for name in ("jointly", "one by one")]
    for world in worlds:
        for number, seconds in enumerate([0, 1, 6, 7]):
            at = format_rfc3339(BASE + seconds * SECOND + 400_000)
            world.ingest("j/numbers", [{"id": number, "n": 3, "at": at}])
        step(world, 1, Limits(bytes=2000), jointly=world is worlds[0])
    assert worlds[0].digest() == worlds[1].digest()


def test_failing_task_of_a_cycle_stops_alone(tmp_path: Path) -> None:
    states = []
    for name, jointly in (("one-by-one", False), ("jointly", True)):
        world = world_of(tmp_path, name, PING_PONG)
        hourly(world, 2, 1, 2, 4, 1)  # 3 becomes -9223372036854775808 - …, of which there is no absolute value
        run = open_run(world.catalog, world.store, InProcessExecutor())
        if not jointly:
            run = Run(world.catalog, world.store, run.tasks)
        run.step()
        run.close()
        errors = {name: str(task.error) for name, task in run.tasks.items() if task.error}
        states.append((state_of(world), errors))
        world.store.close()

    assert states[0] == states[1]
    _, errors = states[1]
    assert list(errors) == ["j/pong"]
    assert "integer overflow" in errors["j/pong"]


@dataclass
class Loses(InProcessExecutor):
    """Loses the worker of each joint transaction."""

    shapes: list[str] = field(default_factory=list)

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        self.shapes.append(plan.shape)
        if plan.shape == "cycle":
            raise LostError("a worker is gone")
        return super().execute(plan, progress)


def test_tasks_of_a_cycle_run_alone_after_lost_cycle_transactions(tmp_path: Path) -> None:
    world = world_of(tmp_path, "data", PING_PONG)
    hourly(world, *[0] * 9)
    executor = Loses()
    run = world.run(executor)
    run.step()
    run.close()
    undisturbed = world_of(tmp_path, "undisturbed", PING_PONG)
    hourly(undisturbed, *[0] * 9)
    undisturbed.step()

    assert world.digest() == undisturbed.digest()
    lost = [place for place, shape in enumerate(executor.shapes) if shape == "cycle"]
    assert lost == [0, 3, 7, 13, 23]


@dataclass
class Told:
    """What an observer is told."""

    notes: list[tuple[Any, ...]] = field(default_factory=list)

    def working(self, task: str, documents: int) -> None:
        self.notes.append(("working", task, documents))

    def committed(self, task: str, done: Committed) -> None:
        self.notes.append(("committed", task, done.documents_in, done.documents_out))

    def failed(self, task: str, error: FlowError) -> None:
        self.notes.append(("failed", task))


def test_messages_of_a_cycle_name_each_task(tmp_path: Path) -> None:
    world = world_of(tmp_path, "data", PING_PONG)
    hourly(world, 1, 0)
    reported = Told()
    run = open_run(world.catalog, world.store, InProcessExecutor(), observer=reported)
    run.step()
    run.close()

    begun = [("working", "j/ping", 0), ("working", "j/pong", 0)]
    assert reported.notes[:2] == begun
    assert ("committed", "j/ping", 5, 3) in reported.notes
    assert ("committed", "j/pong", 3, 3) in reported.notes
    assert {name for kind, name, count in (note for note in reported.notes if note[0] == "working") if count} == {
        "j/ping"
    }
