"""Law of connectors that refill: readers see the old rows until one transaction replaces them by the new rows."""

from __future__ import annotations

import grpc
import pytest
from patience import PATIENCE_SECONDS
from raw_client import COMMIT, Document, key_of, prepare, thing
from served import Client, opening
from subject import Subject

from derive.protocol.stubs import flow_pb2
from derive.protocol.stubs import materialize_pb2 as pb

OLD = [thing(number, "old", amount=1) for number in range(3)]
NEW = [thing(0, "old", amount=2), thing(7, "new", amount=2)]


@pytest.fixture(autouse=True)
def refills(connector_client: Client) -> None:
    if not connector_client.spec().refills:
        pytest.skip("it does not refill")


def spec_of(connector_client: Client, generation: str, *tables: str) -> flow_pb2.MaterializationSpec:
    spec = connector_client.materialization(tables or ("things",))
    for binding in spec.bindings:
        binding.generation = generation
    return spec


def apply(connector_client: Client, spec: flow_pb2.MaterializationSpec, *completed: str) -> pb.ApplyResponse:
    call = connector_client.channel.unary_unary(
        "/materialize.Driver/Apply",
        request_serializer=pb.ApplyRequest.SerializeToString,
        response_deserializer=pb.ApplyResponse.FromString,
    )
    answer: pb.ApplyResponse = call(
        pb.ApplyRequest(materialization=spec, version="v1", completed=completed), timeout=PATIENCE_SECONDS
    )
    return answer


def store(
    connector_client: Client, spec: flow_pb2.MaterializationSpec, documents: list[Document], binding: int = 0
) -> None:
    stream, _ = connector_client.open(spec)
    stream.transact(b"1", stream.store(documents, binding=binding))
    stream.end()


def rows(subject: Subject, documents: list[Document]) -> bool:
    return subject.rows("things") == {key_of(document): document for document in documents}


@pytest.mark.sampled(3)
def test_refill_replaces_all_rows_in_one_transaction(connector_client: Client, subject: Subject) -> None:
    first, second = spec_of(connector_client, "first"), spec_of(connector_client, "second")
    assert list(apply(connector_client, first).contents) == [""]
    store(connector_client, first, OLD)
    applied = apply(connector_client, second)
    assert list(applied.refilling) == [0]
    assert applied.contents[0]
    store(connector_client, second, NEW)
    assert rows(subject, OLD)
    done = apply(connector_client, second, *applied.contents)
    assert rows(subject, NEW)
    assert (list(done.refilling), list(done.contents)) == ([], list(applied.contents))
    again = apply(connector_client, second, *applied.contents)
    assert (again.action_description, list(again.contents)) == ("", list(applied.contents))


@pytest.mark.sampled(3)
def test_sessions_report_contents_of_bindings(connector_client: Client) -> None:
    spec = spec_of(connector_client, "first", "things", "others")
    apply(connector_client, spec)
    spec.bindings[1].generation = "second"
    applied = apply(connector_client, spec)
    assert list(applied.refilling) == [1]
    assert applied.contents[0] == "" != applied.contents[1]
    stream = connector_client.stream(opening(spec))
    assert stream.expect("opened").contents == applied.contents
    stream.end()


@pytest.mark.sampled(3)
def test_completion_of_an_unknown_refill_is_refused(connector_client: Client, subject: Subject) -> None:
    first = spec_of(connector_client, "first")
    apply(connector_client, first)
    store(connector_client, first, OLD)
    with pytest.raises(grpc.RpcError):
        apply(connector_client, spec_of(connector_client, "second"), "unknown")
    assert rows(subject, OLD)


@pytest.mark.sampled(3)
def test_completion_fences_sessions(connector_client: Client, subject: Subject) -> None:
    first, second = spec_of(connector_client, "first"), spec_of(connector_client, "second")
    apply(connector_client, first)
    applied = apply(connector_client, second)
    stream, _ = connector_client.open(second)
    apply(connector_client, second, *applied.contents)
    stream.send(prepare(b"1"))
    stream.expect("prepared")
    stream.send(stream.store(OLD), COMMIT)
    stream.failure()
    assert rows(subject, [])
