"""What goes wrong: replicas and controllers are lost, come back, are late, or haunt."""

from __future__ import annotations

from random import Random

from network import Died, Memory
from oracle import SAMPLES
from user_events import peek
from world import World


def crash(world: World, random: Random) -> None:
    """A replica dies and starts again, with or without its disk."""
    process = world.processes[random.choice(list(world.processes))]
    world.disturbances += 1
    world.leave(process)
    process.die(is_lost=random.random() < 0.4)


def cut(world: World, random: Random) -> None:
    """A connection is cut, of which the replica may not know; what is under way down there arrives yet, or late."""
    name = random.choice(list(world.processes))
    world.disturbances += 1
    for _ in range(random.choice((1, 2))):
        wire = world.links[name]
        world.controller.detach(name, wire.link)
        wire.is_stalled = random.random() < 0.5
        if not wire.is_stalled and random.random() < 0.5 and wire.replica is not None:
            wire.replica.lose(wire.session)
            wire.lose()
        world.connect(name)


def stall(world: World, random: Random) -> None:
    """A connection stalls, or a replica has other things to do, or they go on."""
    if random.random() < 0.5:
        world.lazy ^= {random.choice(list(world.processes))}
        return
    if world.wires:
        wire = random.choice(world.wires)
        wire.is_stalled = not wire.is_stalled


def restart(world: World, random: Random) -> None:
    """The controller dies, and another one starts; the old one may live on, and its catalog be another one by then."""
    world.end_controller()
    if random.random() < 0.5:
        world.zombies.append(world.controller)
        world.controller._capabilities = Memory({})
    if world.catalog and random.random() < 0.5:
        identifier = random.choice(list(world.catalog))
        if random.random() < 0.5:
            for gone in world.over(identifier):
                del world.catalog[gone]
        else:
            for changed in world.over(identifier):
                world.reached.pop(changed, None)
            dataflow = world.catalog[identifier]
            sample = random.randrange(len(SAMPLES))
            world.catalog[identifier] = world.define(identifier, sample, dataflow.export, dataflow.as_of)
    world.begin_controller()


def haunt(world: World, random: Random) -> None:
    """A controller that was taken for dead connects to replicas, and has everything dropped."""
    if not world.zombies:
        return
    zombie = random.choice(world.zombies)
    world.disturbances += 1
    for name in world.processes:
        if random.random() < 0.7:
            zombie.attach(name, world.wired(zombie, name).link)
    for identifier in zombie.ids():
        if random.random() < 0.5:
            zombie.drop(identifier)


def die_while_compacting(world: World, random: Random) -> None:
    """The controller dies as it moves what is held, and replicas go on for a while before there is another one."""
    world.memory.dies = random.random() < 0.5
    try:
        world.allow_compaction(random)
    except Died:
        world.memory.dies = None
        world.end_controller()
        for _ in range(random.choice((0, 2, 4))):
            world.work(random)
        world.begin_controller()
    world.memory.dies = None


def add(world: World, random: Random) -> None:
    """A replica is added."""
    if len(world.processes) < 3:
        world.connect(world.begin_process(random))


def remove(world: World, random: Random) -> None:
    """A replica is taken away, maybe just as it is asked."""
    if len(world.processes) <= 1:
        return
    if random.random() < 0.5:
        peek(world, random)
    asked = [name for name, wire in world.links.items() if any(map(wire.has_under_way, world.asked))]
    name = random.choice(asked or list(world.processes))
    world.disturbances += 1
    process = world.processes.pop(name)
    world.known = {key: known for key, known in world.known.items() if key[0] != name}
    world.leave(process)
    world.controller.detach(name, world.links.pop(name).link)
    process.reconciler.close()


def shut(world: World, random: Random) -> None:
    """Storage cannot be read for a while, or a replica's disk takes nothing."""
    is_away = random.random() < 0.5
    world.disturbances += 1
    world.seconds += random.randrange(20)
    if random.random() < 0.3:
        world.processes[random.choice(list(world.processes))].fill(is_full=is_away)
        return
    world.memory.is_shut = is_away
    world.was_shut |= is_away


FAULT_EVENTS = (crash, cut, stall, restart, haunt, die_while_compacting, add, remove, shut)
