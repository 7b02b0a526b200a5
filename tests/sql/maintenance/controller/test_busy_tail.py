"""A tail that somebody works on is not begun with once more, and misses nothing that comes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from changing import Changing
from network import Memory
from test_retries import BELOW, TYPES

from derive.compute.instance import Instance
from derive.compute.protocol.messages import (
    CreateDataflows,
    CreateInstance,
    Hello,
    InitializationComplete,
    Response,
    Tail,
    TailResponse,
)
from derive.compute.replica.reconciler import Reconciler
from derive.compute.replica.session import Identity


@dataclass(eq=False)
class Interrupted:
    """A connection on which something happens while the first updates of a tail are sent."""

    happen: Callable[[], object] = lambda: None
    tails: list[TailResponse] = field(default_factory=list)

    def send(self, response: Response) -> None:
        if isinstance(response, TailResponse):
            self.tails.append(response)
            if len(self.tails) == 1:
                self.happen()

    def close(self) -> None: ...


def test_what_comes_while_a_tail_is_worked_on_is_told_by_whoever_does(tmp_path: Path) -> None:
    collection = Changing(TYPES)
    collection.change(1, [((1, 1), 1)])
    collection.seal(2)
    jobs: list[Callable[[], object]] = []
    reconciler = Reconciler(
        Instance(tmp_path),
        Memory({1: collection}).open,
        lambda instance, identifiers: None,
        identity=Identity("a"),
        run=jobs.append,
        wake=lambda: None,
    )

    def happen() -> None:
        collection.change(5, [((2, 2), 1)])
        collection.seal(6)
        reconciler.work()

    session = Interrupted(happen)
    with closing(reconciler):
        tail = replace(BELOW, id=103, export=Tail(has_snapshot=True))
        for command in (Hello(1, 1), CreateInstance(), CreateDataflows((tail,)), InitializationComplete()):
            reconciler.accept(session, command)
        reconciler.work()
        assert len(jobs) == 1
        jobs.pop()()
        assert jobs == []
        told = [(one.lower, one.upper, list(one.updates)) for one in session.tails]
        assert told == [(1, 2, [(1, (1, 1), 1)]), (2, 6, [(5, (2, 2), 1)])]

        reconciler.work()
        assert len(jobs) == 1  # nobody works on it any more
