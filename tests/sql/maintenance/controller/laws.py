"""What holds of controllers and replicas at every moment, and once nothing goes wrong any more."""

from __future__ import annotations

from collections import Counter
from random import Random

from clients import Asked
from network import Process
from oracle import TYPES, Rows
from user_events import EVERYTHING, FAR
from world import World

from derive.algebra.relation import Get, GlobalId
from derive.errors import FlowError, FrontierError, SqlError

MOST_ROUNDS = 600

# -- At every moment


def check(world: World) -> None:
    """What holds at every moment."""
    what_is_known_is_so(world)
    holds_pass_nobody_who_reads(world)
    holds_pass_nobody_who_begins(world)
    replicas_wait_for_nothing_that_nobody_asks(world)
    somebody_is_asked(world)


def what_is_known_is_so(world: World) -> None:
    """A frontier that was told is never taken back, and some replica has been so far."""
    for identifier in world.catalog:
        wanted = world.controller.dataflow(identifier)
        assert wanted is not None
        failure = world.controller.failure(identifier)
        is_late = world.was_shut and isinstance(failure, FrontierError)  # holds do not wait for what has failed
        assert failure is None or is_late or "the disk is away" in str(failure), failure
        if failure is not None:
            continue
        _, upper = world.controller.frontiers(identifier)
        assert upper >= world.uppers.get(identifier, 0), "an upper went back"
        assert upper <= max(wanted.as_of, world.reached.get(identifier, 0)), "nobody has been so far"
        world.uppers[identifier] = upper


def holds_pass_nobody_who_reads(world: World) -> None:
    """Whoever reads something can go on from where he is."""
    held = world.memory.held
    for identifier in world.catalog:
        below = world.recipes[identifier][0]
        assert below in world.collections or held[below] <= held[identifier], "a hold has passed a reader"
    for uuid, asked in world.asked.items():
        if asked.is_awaited and asked.is_sure:
            assert held[world.about[uuid]] <= asked.time, "a hold has passed a peek"
    for identifier, tail in world.tails.items():
        if tail.failure is None:
            assert held[identifier] <= max(tail.frontier - 1, tail.dataflow.as_of), "a hold has passed a tail"


def holds_pass_nobody_who_begins(world: World) -> None:
    """A replica that works out first rows can do so anew: what it was told to begin with is remembered.

    What it has begun before it was connected may be earlier; it can begin anew where it was told to as it was.
    """
    for wire in world.links.values():
        replica = wire.replica
        if replica is None or wire.down or replica._session is not wire.session or replica._commands:
            continue
        for identifier, request in replica._instance.main._dataflows.requests.items():
            is_reported = identifier in world.catalog and identifier in wire.begins
            if is_reported and identifier not in replica._reported_failures:
                begins = max(request.as_of, wire.begins[identifier])
                assert world.memory.held[identifier] <= begins, "a hold has passed who begins"


def replicas_wait_for_nothing_that_nobody_asks(world: World) -> None:
    """Once it has heard of all, a replica works at nothing in vain."""
    for wire in world.links.values():
        replica = wire.replica
        if replica is not None and not wire.down and replica._session is wire.session:
            assert replica.peeks._waiting.keys() <= set(world.controller._peeks.uuids()), "nobody waits for that"


def somebody_is_asked(world: World) -> None:
    """Whoever waits for an answer waits for a replica, if there is one."""
    for uuid, asked in world.asked.items():
        if asked.is_awaited:
            assert any(wire.is_at_work_on(uuid) for wire in world.links.values()), "nobody is asked"


# -- At the end


def end(world: World) -> None:
    """Nothing goes wrong any more: everything settles, and everything was true."""
    random = Random(0)
    for _ in range(3):
        world.pass_time(random)
    for uuid, asked in world.asked.items():
        if asked.is_awaited and asked.time >= FAR:
            world.give_up(uuid)
    settle(world, random)
    for tail in world.tails.values():
        tail.check()
        assert tail.failure is not None or tail.frontier > world.now, "a tail has stopped"
    for asked in world.asked.values():
        _check_answer(asked)
    _check_replicas(world)
    _haunt(world, random)
    _check_replicas(world)
    _check_kept(world, random)


def settle(world: World, random: Random) -> None:
    """Go on until nothing happens any more."""
    world.memory.is_shut = False
    for process in world.processes.values():
        process.fill(is_full=False)
    world.lazy.clear()
    for wire in world.wires:
        wire.is_stalled = False
    quiet = 0
    for _ in range(MOST_ROUNDS):
        world.seconds += 1
        happened = world.turn(random)
        what_is_known_is_so(world)
        quiet = 0 if happened else quiet + 1
        if quiet > 40:  # longer than retries pause
            return
    raise AssertionError("it never settles")


def _check_answer(asked: Asked) -> None:
    """A peek was answered once, and truthfully."""
    if asked.is_given_up:
        return
    assert asked.answers, "a peek was never answered"
    (answer,) = asked.answers
    if isinstance(answer, SqlError):
        assert asked.rows_at(asked.time) is None, "a peek was answered with an error that is not there"
    elif not isinstance(answer, FlowError):
        expected = asked.rows_at(asked.time)
        assert expected is not None, "a peek hides an error"
        assert Counter(answer) == +expected, "a peek was answered wrongly"


def _check_replicas(world: World) -> None:
    """Each replica maintains what is wanted and nothing else, up to the present; and so much is held."""
    assert world.memory.held.keys() == world.catalog.keys() | world.tails.keys(), "too much or too little is held"
    for identifier in world.catalog:
        assert world.controller.frontiers(identifier)[1] > world.now, "a frontier was not told"
    for process in world.processes.values():
        instance = process.reconciler._instance.main
        assert set(instance.ids()) == world.catalog.keys(), "a replica maintains something else"
        assert not process.reconciler.peeks._waiting, "a replica waits for nobody"
        for identifier in world.catalog:
            assert instance.frontiers(identifier)[1] > world.now, "a dataflow has stopped"
            rows, expected = _rows(process, identifier, world.now), world.oracle(identifier)(world.now)
            assert rows == (None if expected is None else +expected), "a dataflow is wrong"


def _rows(process: Process, identifier: GlobalId, time: int) -> Rows:
    """What a replica has."""
    try:
        rows = process.reconciler._instance.peek(Get(identifier, TYPES), EVERYTHING, time)
        return Counter(row for batch in rows for row in batch)
    except SqlError:
        return None


def _haunt(world: World, random: Random) -> None:
    """Controllers that were taken for dead are not heard any more."""
    for zombie in world.zombies:
        for name in world.processes:
            zombie.attach(name, world.wired(zombie, name).link)
    if world.zombies:
        settle(world, random)


def _same(world: World, process: Process) -> set[GlobalId]:
    """What a replica is to keep: all that is known from where it is held on, and over nothing that is not."""
    same = set(world.collections)
    for identifier in sorted(world.catalog):
        since, _ = process.reconciler._instance.frontiers(identifier)
        if since <= world.memory.held[identifier] and world.recipes[identifier][0] in same:
            same.add(identifier)
    return same - set(world.collections)


def _check_kept(world: World, random: Random) -> None:
    """Where all is as wanted, another controller has nothing made anew, though replicas were restarted as well."""
    same = {name: _same(world, process) for name, process in world.processes.items()}
    tails = set(world.tails)
    world.end_controller()
    if random.random() < 0.5 or len(world.catalog) % 2:
        for process in world.processes.values():
            world.leave(process)
            process.die(is_lost=False)
    world.welcomes.clear()
    world.begin_controller()
    settle(world, random)
    for name in world.processes:
        welcome = world.welcomes[name]
        assert set(welcome.dropped) <= tails, "what is wanted was dropped"
        assert same[name] <= set(welcome.kept), ("what is the same was made anew", str(welcome))
    _check_replicas(world)
