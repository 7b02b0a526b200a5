"""What users do."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from clients import Asked, Followed
from oracle import LEFT, SAMPLES, TYPES, greater
from relations_sample import call, number
from world import World

from derive.algebra.expression import Column
from derive.algebra.relation import Filter, Finishing, Get
from derive.algebra.types import Type
from derive.compute.protocol.messages import Dataflow, Index, PeekResponse, Query, Tail
from derive.errors import FlowError, FrontierError

EVERYTHING = Finishing((), None, 0, (0, 1))
FAR = 1_000_000
"""A time that never comes."""


def tick(world: World, random: Random) -> None:
    """A moment later."""
    world.pass_time(random)


def index(world: World, random: Random) -> None:
    """An index is created."""
    dataflow = world.define(
        world.new_id(), random.randrange(len(SAMPLES)), Index((Column(0, Type.BIGINT),)), world.time(random)
    )
    world.create([dataflow])
    if random.random() < 0.5:
        _ask(world, dataflow, random)


def index_on_index(world: World, random: Random) -> None:
    """An index on what another one keeps is created."""
    if not world.catalog:
        return
    below = random.choice(list(world.catalog))
    identifier = world.new_id()
    plan = Filter(Get(below, TYPES), call(">", LEFT, number(1)))
    world.recipes[identifier] = below, greater(1)
    as_of = max(world.time(random), world.memory.held[below])
    world.create([Dataflow(identifier, plan, (), Index(), as_of)])


def drop(world: World, random: Random) -> None:
    """An index is dropped, with all that is over it."""
    if world.catalog:
        world.drop(world.over(random.choice(list(world.catalog))))


def redefine(world: World, random: Random) -> None:
    """An index becomes one of something else; what is over it is made anew."""
    if not world.catalog:
        return
    world.disturbances += 1
    below = [identifier for identifier in world.catalog if len(world.over(identifier)) > 1]
    changed, *others = world.drop(world.over(random.choice(below or list(world.catalog))))
    as_of = world.time(random)
    first = world.define(changed.id, random.randrange(len(SAMPLES)), changed.export, as_of)
    world.create([first, *(replace(other, as_of=as_of) for other in others)])


def allow(world: World, random: Random) -> None:
    """Nobody is to ask for earlier times any more."""
    world.allow_compaction(random)


def peek(world: World, random: Random) -> None:
    """Somebody asks."""
    if world.catalog:
        _ask(world, random.choice(list(world.catalog.values())), random)


def _ask(world: World, dataflow: Dataflow, random: Random) -> None:
    earliest = world.memory.held[dataflow.id]  # which a replica that has begun late does not know
    time = earliest if random.random() < 0.3 else max(world.time(random), earliest) + random.choice((0, 0, 1, 2, FAR))
    uppers = [replica.uppers.get(dataflow.id) for replica in world.controller.replicas().values()]
    has_it = any(known is not None and known.since <= time and known.since < known.upper for known in uppers)
    is_sure = has_it and not world.memory.is_shut
    asked = Asked(world.oracle(dataflow.id), time, is_sure, world.disturbances)

    def receive(response: PeekResponse) -> None:
        assert not asked.answers, "a peek was answered twice"
        assert not asked.is_cancelled, "a peek was answered that nobody waited for"
        if isinstance(response.result, FlowError):
            asked.answers.append(response.result)
            is_sure = asked.is_sure or "not maintained" in str(response.result)
            is_gone = isinstance(response.result, FrontierError) and is_sure
            is_disturbed = asked.disturbances < world.disturbances
            assert not is_gone or is_disturbed, ("what was held is forgotten", response.result)
            return
        asked.parts += response.result
        if response.is_last:
            asked.answers.append(asked.parts)

    uuid = world.controller.peek(Query(Get(dataflow.id, TYPES), EVERYTHING), asked.time, receive)
    world.asked[uuid], world.about[uuid] = asked, dataflow.id
    replicas = world.controller.replicas()
    known = {name: replica.uppers.get(dataflow.id) for name, replica in replicas.items()}
    begun = {name for name, upper in known.items() if upper is not None and upper.upper > upper.since}
    reported = {name for name, wire in world.links.items() if wire.has_under_way(uuid)}
    assert not begun or reported <= begun, "who has no rows yet is asked, though others have them"
    assert not begun or len(reported) <= 1, "several are asked, though one may answer"


def lose_patience(world: World, random: Random) -> None:
    """Somebody asks, and somebody has waited for too long."""
    peek(world, random)
    awaited = [uuid for uuid, asked in world.asked.items() if asked.is_awaited]
    if not awaited:
        return
    uuid = random.choice(awaited)
    world.controller.hasten(uuid)
    pending = world.controller._peeks._pending[uuid]
    for name, replica in world.controller.replicas().items():
        has_rows = replica.has_begun(world.about[uuid])
        assert not has_rows or replica in pending.asked, f"{name} is not asked, though others are late"


def cancel(world: World, random: Random) -> None:
    """Somebody waits no more."""
    awaited = [uuid for uuid, asked in world.asked.items() if asked.is_awaited]
    if awaited:
        world.give_up(random.choice(awaited))


def subscribe(world: World, random: Random) -> None:
    """Somebody follows a relation."""
    if len(world.tails) >= 3:
        return
    sample, has_snapshot, as_of = random.randrange(len(SAMPLES)), random.random() < 0.5, world.time(random)
    same = [key for key, dataflow in world.catalog.items() if dataflow.plan == SAMPLES[sample][0]]
    export = Tail(has_snapshot, of=random.choice([None, *same]))
    dataflow = world.define(world.new_id(), sample, export, as_of)
    followed = Followed(dataflow, world.oracle(dataflow.id), has_snapshot, as_of)
    world.tails[dataflow.id] = followed
    world.controller.subscribe(dataflow, followed.receive)


def unsubscribe(world: World, random: Random) -> None:
    """Somebody follows it no more."""
    if world.tails:
        world.unfollow(random.choice(list(world.tails)))


USER_EVENTS = (tick, index, index_on_index, drop, redefine, allow, peek, lose_patience, cancel, subscribe, unsubscribe)
