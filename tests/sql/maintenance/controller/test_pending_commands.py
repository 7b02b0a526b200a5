"""Commands that an instance has not executed yet delay only the answers that they may affect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from changing import Changing
from network import Memory

from derive.algebra.expression import Column
from derive.algebra.relation import Finishing, Get
from derive.algebra.types import Row, Type
from derive.compute.instance import Instance
from derive.compute.protocol.messages import (
    AllowCompaction,
    Command,
    CreateDataflows,
    CreateInstance,
    Dataflow,
    Hello,
    Import,
    Index,
    InitializationComplete,
    Peek,
    PeekResponse,
    Query,
    Response,
)
from derive.compute.replica.reconciler import Reconciler
from derive.compute.replica.session import Identity
from derive.time import END_OF_TIME

TYPES = (Type.BIGINT, Type.BIGINT)
INDEX = Dataflow(101, Get(1, TYPES), (Import(1, None, "u"),), Index((Column(0, Type.BIGINT),)), 1)  # type: ignore[arg-type]
BEGINNING: tuple[Command, ...] = (Hello(1, 1), CreateInstance(), CreateDataflows((INDEX,)), InitializationComplete())
ROWS: list[Row] = [(1, 1), (2, 2)]


def created(*identifiers: int) -> list[Command]:
    """One command for each dataflow."""
    return [CreateDataflows((replace(INDEX, id=identifier),)) for identifier in identifiers]


@dataclass(eq=False)
class Client:
    """A connection to an instance that has one dataflow, over a collection."""

    reconciler: Reconciler
    collection: Changing
    answers: dict[int, list[Row]] = field(default_factory=dict)

    def send(self, response: Response) -> None:
        if isinstance(response, PeekResponse):
            assert not isinstance(response.result, Exception)
            self.answers.setdefault(response.uuid, []).extend(response.result)

    def close(self) -> None: ...

    def ask(self, identifier: int, uuid: int = 7) -> None:
        query = Query(Get(identifier, TYPES), Finishing((), None, 0, (0, 1)))
        self.reconciler.accept(self, Peek(uuid, query, 1))

    def say(self, *commands: Command) -> None:
        for command in commands:
            self.reconciler.accept(self, command)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    collection = Changing(TYPES)
    collection.change(1, [(row, 1) for row in ROWS])
    collection.seal(2)
    instance = Reconciler(
        Instance(tmp_path),
        Memory({1: collection}).open,
        lambda instance, identifiers: {},
        identity=Identity("a"),
        run=lambda task: task(),
        wake=lambda: None,
    )
    with closing(instance):
        client = Client(instance, collection)
        client.say(*BEGINNING)
        while instance.work():
            pass
        yield client


@pytest.mark.parametrize(
    ("pending", "is_answered"),
    [
        ([], True),
        (created(102), True),  # another dataflow
        (created(102, 103), True),
        ([AllowCompaction(((101, 1),))], True),
        (created(102, 101), False),  # the same dataflow again, perhaps with another plan
        ([AllowCompaction(((101, END_OF_TIME),))], False),  # its end
        ([*BEGINNING], False),  # another controller
    ],
)
def test_peek_waits_only_for_pending_commands_that_may_affect_its_answer(
    client: Client, pending: list[Command], is_answered: bool
) -> None:
    client.say(*pending)
    client.ask(101)
    assert client.answers == ({7: ROWS} if is_answered else {})


def test_peek_of_a_pending_dataflow_waits_for_its_rows(client: Client) -> None:
    client.say(*created(102))
    client.ask(102)
    assert client.answers == {}
    while client.reconciler.work():
        pass
    assert client.answers == {7: ROWS}
