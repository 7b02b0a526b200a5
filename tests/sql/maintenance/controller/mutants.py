"""Ways to break the controller, and instances: each switches off one rule, and the model is to notice.

A rule that can be switched off without notice is either needless, or not tested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from derive.backoff import Retries
from derive.compute.dataflow.dataflows import GroupFailures
from derive.compute.protocol.messages import (
    AllowCompaction,
    CancelPeeks,
    CreateDataflows,
    Dataflow,
    Hello,
    InitializationComplete,
    Tail,
)
from derive.compute.replica.reconciler import Reconciler
from derive.reconcile import Reconciliation
from derive.sql.maintenance.controller.controller import Controller
from derive.sql.maintenance.controller.reads import Peeks, PendingTail
from derive.sql.maintenance.controller.replica import Replica

Mutant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def around(owner: type, name: str, other: Callable[..., Any]) -> Mutant:
    """Has something else done in place of a method; it is given the method first."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **named: other(original, *args, **named))

    return apply


def without(owner: type, name: str, result: object = None) -> Mutant:
    """Has a method do nothing."""
    return around(owner, name, lambda original, *args, **named: result)


def replicas_of(controller: Any, *args: Any) -> list[Any]:
    return list(controller._replicas.values())


def muted(*kinds: type, replicas_of: Callable[..., Any] = replicas_of) -> Callable[..., Any]:
    """A method of a controller, while which its replicas are not told some commands."""

    def call(original: Callable[..., Any], controller: Any, *args: Any, **named: Any) -> Any:
        class Muted:
            is_local = False

            def __init__(self, link: Any) -> None:
                self.link = link

            def send(self, command: object) -> None:
                if not isinstance(command, kinds):
                    self.link.send(command)

        replicas = list(replicas_of(controller, *args))
        for replica in replicas:
            replica.link = Muted(replica.link)
        try:
            return original(controller, *args, **named)
        finally:
            for replica in replicas:
                replica.link = replica.link.link

    return call


def greeted(is_of: Callable[[Any, Hello], bool]) -> Mutant:
    """Has an instance listen to a controller that it is not to listen to any more."""

    def greet(original: Callable[..., Any], reconciler: Any, session: object, hello: Hello) -> None:
        if is_of(reconciler._latest, hello):
            reconciler._latest = (-1, -1)
        original(reconciler, session, hello)

    return around(Reconciler, "_greet", greet)


def obeyed_whoever_it_is(original: Callable[..., Any], reconciler: Any, session: object, command: object) -> None:
    current = reconciler._session
    is_late = not isinstance(command, Hello) and current is not None
    original(reconciler, current if is_late else session, command)


def last_upper(original: Callable[..., Any], controller: Any, replica: Any, response: Any) -> Any:
    turns = original(controller, replica, response)
    for known in response.uppers:
        if controller._is_requested(known):
            controller._uppers[known.id] = known.upper
    controller._learn(known.id for known in response.uppers)
    return turns


def not_number(original: Callable[..., Any], controller: Any, response: Any) -> bool:
    return response.id in controller._dataflows


def answered_again(original: Callable[..., Any], peeks: Any, replica: Any, response: Any, replicas: Any) -> Any:
    pending = peeks._pending.get(response.uuid)
    turn = original(peeks, replica, response, replicas)
    if pending is not None:
        peeks._pending[response.uuid] = pending
    return turn


def cancelled_only_there(original: Callable[..., Any], peeks: Any, uuid: int) -> None:
    pending = peeks._pending.get(uuid)
    original(peeks, uuid)
    if pending is not None:
        peeks._pending[uuid] = pending


def lost_in_silence(original: Callable[..., Any], *args: Any) -> Any:
    return [replace(turn, asked=()) for turn in original(*args)]


def refused_in_silence(original: Callable[..., Any], *args: Any) -> Any:
    turn = original(*args)
    return turn and replace(turn, asked=())


def repeated(original: Callable[..., Any], tail: Any, replica: object, response: Any) -> Any:
    news = original(tail, replica, response)
    is_whole = news is not None and news.failure is None and response.upper > response.lower
    return replace(news, updates=response.updates) if is_whole else news


def unspliced(original: Callable[..., Any], tail: Any, replica: object, response: Any) -> Any:
    tail.frontier = min(tail.frontier, response.lower)
    return original(tail, replica, response)


def resumed_at(choose: Callable[[Any], Dataflow]) -> Mutant:
    """Has a replica that joins begin a tail somewhere else."""
    return lambda patch: patch.setattr(PendingTail, "dataflow", property(choose))


def later(tail: Any) -> Dataflow:
    """The rest of a tail without its next moment."""
    first: Dataflow = tail._dataflow
    if tail.frontier == first.as_of:
        return first
    return replace(first, export=Tail(has_snapshot=False, of=tail._export.of), as_of=tail.frontier)


def difference(blinded: Callable[[Any, Any, Any, Any], tuple[Any, Any] | str]) -> Mutant:
    """Has an instance compare something else."""

    def differ(original: Callable[..., Any], reconciler: Any, identifier: int, present: Any, wanted: Any) -> Any:
        seen = blinded(reconciler, identifier, present, wanted)
        return seen if isinstance(seen, str) else original(reconciler, identifier, *seen)

    return around(Reconciler, "_difference", differ)


def ignored(*words: str) -> Mutant:
    """Has an instance keep what it is to make anew, for some reasons."""

    def differ(original: Callable[..., Any], *args: Any) -> Any:
        why = original(*args)
        return None if why is not None and any(word in why for word in words) else why

    return around(Reconciler, "_difference", differ)


def everything_named(original: Callable[..., Any], reconciliation: Any) -> Any:
    reconciliation._named.update(reconciliation.present)
    return original(reconciliation)


def needed_without(*kinds: str) -> Mutant:
    """Has a controller forget of whom there is that still needs something."""

    def needed(original: Callable[..., Any], controller: Any, identifier: int) -> Any:
        empty: dict[str, Any] = {"_reads": {}, "_tails": {}, "_replicas": {}}
        before = {kind: getattr(controller, kind) for kind in kinds}
        for kind in kinds:
            setattr(controller, kind, empty[kind])
        try:
            return original(controller, identifier)
        finally:
            for kind, value in before.items():
                setattr(controller, kind, value)

    return around(Controller, "_needed", needed)


def begun_with_anything(original: Callable[..., Any], replica: Any, known: Any) -> None:
    original(replica, known)
    replica.begun.pop(known.id, None)


def told_before_held(original: Callable[..., Any], controller: Any, frontiers: Any) -> None:
    capabilities = controller._capabilities

    def acquire(dataflows: Any) -> None:
        controller._broadcast(AllowCompaction(tuple((dataflow.id, dataflow.as_of) for dataflow in dataflows)))
        capabilities.acquire(dataflows)

    controller._capabilities = type(
        "Capabilities", (), {"acquire": staticmethod(acquire), "release": capabilities.release}
    )()
    try:
        original(controller, frontiers)
    finally:
        controller._capabilities = capabilities


def as_of_before(original: Callable[..., Any], controller: Any, frontiers: Any) -> None:
    before = dict(controller._dataflows)
    original(controller, frontiers)
    controller._dataflows.update(before)


def held_for_ever(original: Callable[..., Any], controller: Any, identifier: int) -> None:
    capabilities = controller._capabilities
    controller._capabilities = type(
        "Capabilities", (), {"acquire": capabilities.acquire, "release": lambda self, identifier: None}
    )()
    try:
        original(controller, identifier)
    finally:
        controller._capabilities = capabilities


def attached_without(kind: str) -> Mutant:
    """Has a controller keep something to itself as a replica is connected."""

    def attach(original: Callable[..., Any], controller: Any, name: str, link: Any) -> None:
        before = getattr(controller, kind)
        setattr(controller, kind, {})
        try:
            original(controller, name, link)
        finally:
            setattr(controller, kind, before)

    return around(Controller, "attach", attach)


def remembered(original: Callable[..., Any], reconciler: Any, session: Any, command: Any) -> None:
    reported = dict(reconciler._reported)
    original(reconciler, session, command)
    if isinstance(command, InitializationComplete):
        reconciler._reported.update(reported)


def told_at_once(original: Callable[..., Any], reconciler: Any, session: Any, command: Any) -> None:
    original(reconciler, session, command)
    if isinstance(command, Hello):
        reconciler._welcomed = session
        reconciler._reported.clear()


def named_quietly(original: Callable[..., Any], reconciler: Any, dataflow: Dataflow) -> None:
    reported = reconciler._reported.get(dataflow.id)
    original(reconciler, dataflow)
    if reported is not None:
        reconciler._reported[dataflow.id] = replace(reported, number=dataflow.number)


def begun_from_before(original: Callable[..., Any], reconciler: Any, identifier: int, frontier: int) -> None:
    before = reconciler._dataflows.present[identifier]
    original(reconciler, identifier, frontier)
    reconciler._dataflows.present[identifier] = before


def impatient(original: Callable[..., Any], reconciler: Any, reads: Any) -> Any:
    return reconciler._session


MUTANTS: dict[str, Mutant] = {
    # Who is listened to
    "an older controller is listened to": greeted(lambda latest, hello: hello.epoch < latest[0]),
    "an older connection is listened to": greeted(lambda latest, hello: hello.epoch == latest[0]),
    "commands of any connection are obeyed": around(Reconciler, "accept", obeyed_whoever_it_is),
    # Frontiers
    "the last upper counts": around(Controller, "_advance", last_upper),
    "uppers are told before a session is welcomed": around(Reconciler, "_obey", told_at_once),
    "uppers of an earlier dataflow are believed": around(Controller, "_is_requested", not_number),
    "uppers are told once, and not to each session": around(Reconciler, "_obey", remembered),
    # Peeks
    "each answer to a peek counts": around(Peeks, "take", answered_again),
    "others are not told of an answer": around(
        Peeks, "take", muted(CancelPeeks, replicas_of=lambda peeks, *args: args[-1])
    ),
    "replicas are not told that nobody waits": around(Controller, "cancel", muted(CancelPeeks)),
    "an answer is handed on though nobody waits": around(Peeks, "cancel", cancelled_only_there),
    "peeks are not sent again": without(Peeks, "join"),
    "replicas are asked that work rows out while others have them": without(Replica, "has_begun", True),
    "nobody else is asked as long as a replica is late": without(Peeks, "hasten"),
    "nobody else is asked once a replica is lost": around(Peeks, "lose", lost_in_silence),
    "nobody else is asked once a replica refuses": around(Peeks, "take", refused_in_silence),
    "peeks do not wait for commands before them": around(Reconciler, "_answerable", impatient),
    # Tails
    "updates are handed on twice": around(PendingTail, "_spliced", repeated),
    "a tail goes back to where a replica is": around(PendingTail, "_spliced", unspliced),
    "a tail is resumed a moment late": resumed_at(later),
    "a tail is begun anew for each replica": resumed_at(lambda tail: tail._dataflow),
    "a tail goes on with the connection before": ignored("always rebuilt"),
    "a tail that no replica goes on with is not ended": without(PendingTail, "give_up"),
    # Reconciliation
    "nothing is kept": difference(lambda *args: "is unloved"),
    "plans are not compared": ignored("plan or sources changed"),
    "sinces are not compared": ignored("not known at"),
    "what is below is not compared": ignored("an input was rebuilt"),
    "what was not named is kept": around(Reconciliation, "complete", everything_named),
    "dataflows are not sent again": attached_without("_dataflows"),
    "a dropped dataflow stays": around(Controller, "drop", muted(AllowCompaction)),
    "a new dataflow is not told": around(Controller, "create", muted(CreateDataflows)),
    # Holds
    "a hold passes what is over it": needed_without("_reads"),
    "a hold passes tails": needed_without("_tails"),
    "a hold passes pending peeks": without(Peeks, "times", []),
    "a hold passes replicas that have not begun": needed_without("_replicas"),
    "a hold passes replicas that are yet to have rows": around(Replica, "learn", begun_with_anything),
    "replicas forget before that is durable": around(Controller, "allow_compaction", told_before_held),
    "a replica that joins begins too early": around(Controller, "allow_compaction", as_of_before),
    "what is dropped is held": around(Controller, "drop", held_for_ever),
    # Retries
    "a failed group never resumes": without(GroupFailures, "resume"),
    "a failed group is not known to resume": without(GroupFailures, "can_resume", False),
    "nothing is tried again": without(Retries, "take_due", []),
    "what may begin later waits for its pause": without(Retries, "hasten"),
    "a dataflow that is tried again begins too early": around(Reconciler, "_allow_compaction", begun_from_before),
}

NOTICED = {
    "uppers of an earlier dataflow are believed": 11,
    "nobody else is asked once a replica refuses": 40,
    "a tail goes on with the connection before": 18,
    "a tail that no replica goes on with is not ended": 21,
    "sinces are not compared": 41,
    "what is below is not compared": 82,
    "what was not named is kept": 12,
    "a dropped dataflow stays": 15,
    "a dataflow that is tried again begins too early": 21,
    "an older connection is listened to": 4,
    "the last upper counts": 3,
    "uppers are told before a session is welcomed": 3,
    "others are not told of an answer": 8,
    "replicas are not told that nobody waits": 9,
    "replicas are asked that work rows out while others have them": 8,
    "nobody else is asked as long as a replica is late": 3,
    "nobody else is asked once a replica is lost": 9,
    "peeks do not wait for commands before them": 74,
    "updates are handed on twice": 7,
    "a hold passes what is over it": 3,
    "a hold passes pending peeks": 9,
    "replicas forget before that is durable": 9,
    "what is dropped is held": 7,
    "what may begin later waits for its pause": 3,
    "a tail is resumed a moment late": 11,
    "a hold passes replicas that are yet to have rows": 11,
}
"""The first history of `model.py` that notices a mutant, where it is not one of the first ten."""
