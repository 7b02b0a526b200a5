"""What a controller and an instance send one another is what arrives."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_relations import RandomRelations

from derive.algebra.relation import Finishing, Get, Relation
from derive.algebra.types import ModifiedType, Row, Type, TypeModifier
from derive.compute.instance import Progress
from derive.compute.protocol.messages import (
    AllowCompaction,
    CancelPeeks,
    Command,
    CreateDataflows,
    CreateInstance,
    Dataflow,
    FrontierUppers,
    Hello,
    Import,
    Index,
    InitializationComplete,
    Materialized,
    Peek,
    PeekResponse,
    Query,
    Report,
    Response,
    Status,
    Tail,
    TailResponse,
    Upper,
    Welcome,
)
from derive.compute.protocol.transport import command_message, command_of, decode, encode, response_message, response_of
from derive.errors import FlowError, FrontierError, ProtocolError, SqlError
from derive.protocol.stubs import compute_pb2 as pb
from derive.storage.table_types import Table, TableColumn
from derive.time import END_OF_TIME

DATA = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(), st.binary())
ROWS = st.lists(st.tuples(DATA, DATA), max_size=5)
IDS = st.integers(0, 2**40)
TIMES = st.integers(0, END_OF_TIME - 1)
ERRORS = st.sampled_from([SqlError("22012", "division by zero", hint="do not"), FrontierError("gone")])
RELATIONS = st.integers(0, 2**32).map(lambda seed: RandomRelations(Random(seed)).relation(3))
TABLE = Table(7, "sql/public/t", (TableColumn("a", "bigint"),), ("/a",), 5, 9)
EXPORTS = st.one_of(
    st.builds(Index, st.lists(st.integers(0, 9), max_size=3).map(tuple)),
    st.builds(Materialized, IDS),
    st.builds(Tail, st.booleans(), st.none() | IDS, st.none() | TIMES),
)
DATAFLOWS = st.builds(Dataflow, IDS, RELATIONS, st.just((Import.of(7, TABLE),)), EXPORTS, TIMES, IDS, st.text())
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(Hello, IDS, IDS, st.text(), st.text()),
    st.builds(CreateInstance, st.text()),
    st.builds(CreateDataflows, st.lists(DATAFLOWS, max_size=3).map(tuple)),
    st.builds(AllowCompaction, st.lists(st.tuples(IDS, TIMES | st.just(END_OF_TIME)), max_size=3).map(tuple)),
    st.builds(CancelPeeks, st.lists(IDS).map(tuple)),
    st.just(InitializationComplete()),
)
RESPONSES: st.SearchStrategy[Response] = st.one_of(
    st.builds(
        Welcome,
        st.text(),
        IDS,
        *[st.lists(IDS).map(tuple)] * 3,
        st.lists(st.text()).map(tuple),
        st.dictionaries(IDS, st.text()),
    ),
    st.builds(Report, IDS, st.lists(st.builds(Progress, IDS, st.text(), IDS)).map(tuple)),
    st.builds(FrontierUppers, st.lists(st.builds(Upper, IDS, TIMES, TIMES)).map(tuple)),
    st.builds(PeekResponse, IDS, ROWS, st.booleans()),
    st.builds(
        TailResponse, IDS, TIMES, TIMES, st.lists(st.tuples(TIMES, st.tuples(DATA), st.integers(-9, 9))).map(tuple)
    ),
)


@given(command=COMMANDS)
def test_commands_survive_encoding(command: Command) -> None:
    message = command_message(command).SerializeToString(deterministic=True)

    arrived = command_of(pb.ComputeCommand.FromString(message))

    assert arrived == command
    assert command_message(arrived).SerializeToString(deterministic=True) == message


@given(response=RESPONSES)
def test_responses_survive_encoding(response: Response) -> None:
    assert response_of(pb.ComputeResponse.FromString(response_message(response).SerializeToString())) == response


@given(relation=RELATIONS, arguments=st.lists(DATA, max_size=3).map(tuple), most_bytes=st.none() | st.integers(1, 99))
def test_peeks_survive_encoding_and_share_one_query(relation: Relation, arguments: Row, most_bytes: int | None) -> None:
    query = Query(relation, Finishing((), None, 0, (0,)))
    peeks = [Peek(uuid, query, 5, arguments, most_bytes) for uuid in (1, 2)]

    first, second = (command_of(command_message(peek)) for peek in peeks)

    assert isinstance(first, Peek)
    assert isinstance(second, Peek)
    assert (first.query.relation, first.query.finishing) == (relation, query.finishing)
    assert (first.uuid, first.time, first.arguments, first.most_bytes) == (1, 5, arguments, most_bytes)
    assert first.query is second.query


@given(error=ERRORS)
def test_errors_survive_encoding(error: FlowError) -> None:
    for response in (PeekResponse(1, error), Status(1, error), TailResponse(1, 2, 3, (), error)):
        arrived = response_of(response_message(response))
        sent = arrived.result if isinstance(arrived, PeekResponse) else arrived.failure  # type: ignore[union-attr]

        assert isinstance(sent, FlowError)
        assert type(sent) is type(error)
        assert sent.to_json() == error.to_json()
    assert response_of(response_message(Status(1, None, 7))) == Status(1, None, 7)


def test_dataflows_with_the_same_identifier_are_distinguished() -> None:
    dataflow = Dataflow(1, Get(2, (Type.BIGINT,)), (), Index(), 5, number=7)
    command = command_of(command_message(CreateDataflows((dataflow,))))
    response = FrontierUppers((Upper(1, 5, 6, 7),))

    assert isinstance(command, CreateDataflows)
    assert command.dataflows[0].number == 7
    assert response_of(response_message(response)) == response


def test_source_message_is_equal_after_writes_and_moved_catalog_lines() -> None:
    later = Table(7, "sql/public/renamed", TABLE.columns, TABLE.key, 6, 12)

    assert Import.of(7, TABLE) == Import.of(7, later)
    assert Import.of(7, TABLE) != Import.of(7, Table(7, "t", (TableColumn("b", "bigint"),), ("/b",), 5, 9))


@pytest.mark.parametrize("value", [("os.system", "true"), ("Get",), ("Type", "no such type"), 5])
def test_decode_refuses_unknown_values(value: object) -> None:
    import ormsgpack

    if value == 5:
        assert decode(encode(5)) == 5
        return
    with pytest.raises(ProtocolError):
        decode(ormsgpack.packb(value))


def test_invalid_messages_are_refused() -> None:
    with pytest.raises(ProtocolError):
        command_of(pb.ComputeCommand())
    with pytest.raises(ProtocolError):
        response_of(pb.ComputeResponse())
    with pytest.raises(ProtocolError):
        decode(b"\xc1")
    with pytest.raises(TypeError):
        encode(object())


def test_type_modifiers_survive_encoding() -> None:
    modifier = TypeModifier(ModifiedType.TIMESTAMPTZ, 4, zone="Asia/Tokyo")
    assert decode(encode(modifier)) == modifier


def test_large_integers_of_schemas_survive_encoding() -> None:
    assert decode(encode(({"maximum": 10**30}, Type.BIGINT, Get(1, ())))) == (
        {"maximum": 10**30},
        Type.BIGINT,
        Get(1, ()),
    )
