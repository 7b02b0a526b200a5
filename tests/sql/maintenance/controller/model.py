"""Histories of controllers and replicas in which anything may happen, and laws that hold all the time.

A history is that of its seed: whoever finds one that breaks a law plays it again.
"""

from __future__ import annotations

from random import Random

from fault_events import FAULT_EVENTS
from laws import check, end
from user_events import USER_EVENTS
from world import World

from derive.errors import FlowError

HISTORIES = 200
"""In so many, from seed 0 on, whatever breaks a rule is noticed."""
EVENTS = (*USER_EVENTS, *FAULT_EVENTS)


def play(seed: int, steps: int = 40) -> None:
    """One history, in which anything may happen, some things more often than others.

    Raises:
        AssertionError: something that holds does not.
        FlowError: what is to be known is not.
    """
    random = Random(seed)
    weights = [random.choice((0.3, 1, 3)) for _ in EVENTS]
    world = World()
    try:
        for _ in range(random.randint(1, 3)):
            world.begin_process(random)
        world.begin_controller()
        for event in random.choices(EVENTS, weights, k=steps):
            event(world, random)
            world.go_on(random)
            check(world)
        end(world)
    except (AssertionError, FlowError) as failure:
        failure.add_note(f"That was history {seed} of {steps} events.")
        raise
    finally:
        world.close()
