"""What every connector answers to `Spec`, `Validate` and `Apply`."""

from __future__ import annotations

import json
from collections.abc import Callable

import grpc
import pytest
from jsonschema import Draft202012Validator
from raw_client import COMMIT, DOCUMENT, KEYS, VALUES, Stream, collection, eventually, load, pack_key, prepare, thing
from served import Client, opening
from subject import Subject

from derive.protocol.stubs import flow_pb2
from derive.protocol.stubs import materialize_pb2 as pb


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    assert isinstance(error.value, grpc.Call)
    return error.value.code(), error.value.details() or ""


def test_spec_returns_schemas_that_accept_its_configurations(connector_client: Client, subject: Subject) -> None:
    spec = connector_client.spec()

    for text, value in (
        (spec.endpoint_spec_schema_json, subject.config),
        (spec.resource_spec_schema_json, subject.resource("things", not subject.loads)),
    ):
        schema = json.loads(text)
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(value)
    assert spec.documentation_url


def test_every_field_has_a_constraint_with_a_reason(connector_client: Client, subject: Subject) -> None:
    left, right = connector_client.validate(["left", "right"], delta=not subject.loads).bindings

    assert sorted(left.constraints) == sorted([*KEYS, *VALUES, DOCUMENT])
    assert all(constraint.reason for constraint in left.constraints.values())
    assert left.resource_path
    assert list(left.resource_path) != list(right.resource_path)
    assert left.delta_updates is (not subject.loads)
    required = {pb.Constraint.FIELD_REQUIRED, pb.Constraint.LOCATION_REQUIRED}
    if subject.loads:
        assert all(left.constraints[key].type in required for key in KEYS)


def test_validate_returns_the_requested_delta_updates(connector_client: Client, subject: Subject) -> None:
    if not subject.deltas:
        pytest.skip("it has none")

    assert connector_client.validate(["things"], delta=True).bindings[0].delta_updates


@pytest.mark.sampled(4)
def test_dry_run_changes_nothing_and_prints_the_plan(connector_client: Client, subject: Subject) -> None:
    spec = connector_client.materialization()

    planned = connector_client.apply(spec, dry_run=True)
    assert planned == connector_client.apply(spec, dry_run=True)
    assert planned == connector_client.apply(spec)
    assert bool(planned) is subject.applies
    assert "password" not in planned
    # there is nothing more to do
    assert connector_client.apply(spec, "v2", dry_run=True) == connector_client.apply(spec, "v2") == ""


def test_configurations_that_fail_the_schema_are_refused(connector_client: Client, subject: Subject) -> None:
    for wrong in subject.wrong:
        with pytest.raises(grpc.RpcError) as validated:
            connector_client.validate(["things"], config=wrong)
        spec = connector_client.materialization()
        spec.endpoint_spec_json = json.dumps(wrong)
        with pytest.raises(grpc.RpcError) as applied:
            connector_client.apply(spec)

        for code, text in (refusal(validated), refusal(applied), connector_client.stream(opening(spec)).failure()):
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text.startswith(f"the endpoint's configuration of {subject.connector.name} is not valid: ")


def test_resources_that_fail_the_schema_are_refused(connector_client: Client, subject: Subject) -> None:
    spec = connector_client.materialization(["left", "right"])
    spec.bindings[1].resource_spec_json = "[]"

    with pytest.raises(grpc.RpcError) as applied:
        connector_client.apply(spec)

    code, text = refusal(applied)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith(f"the resource of binding 1 of {subject.connector.name} is not valid: ")


def test_malformed_requests_are_refused(connector_client: Client) -> None:
    spec = connector_client.materialization()

    with pytest.raises(grpc.RpcError) as no_version:
        connector_client.apply(spec, "")
    assert refusal(no_version) == (grpc.StatusCode.INVALID_ARGUMENT, "'version' of the request is empty")
    spec.bindings[0].field_selection.keys.append("nothing")
    with pytest.raises(grpc.RpcError) as no_field:
        connector_client.apply(spec)
    what = "the field 'nothing' is selected, and 'test/things' has no projection of that name"
    assert refusal(no_field) == (grpc.StatusCode.INVALID_ARGUMENT, what)
    spec.endpoint_spec_json = '{"password": "hidden'
    with pytest.raises(grpc.RpcError) as no_json:
        connector_client.apply(spec)
    code, text = refusal(no_json)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("'endpoint_spec_json' of the request is not JSON")
    assert "hidden" not in text


def test_test_collection_equals_a_collection_of_a_catalog() -> None:
    assert [projection.field for projection in collection().projections] == [*KEYS, *VALUES, DOCUMENT]


# Messages that are out of place or make no sense: each ends the stream with an error that says what, and where.


INVALID = grpc.StatusCode.INVALID_ARGUMENT


def stored(stream: Stream) -> pb.TransactionRequest:
    return stream.store([thing(1), thing(2)])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("message", "name"), [(load(0, [(1, "a")]), "Load"), (prepare(b"1"), "Prepare"), (COMMIT, "Commit")]
)
def test_messages_before_open_are_refused(connector_client: Client, message: pb.TransactionRequest, name: str) -> None:
    code, text = connector_client.stream(message).failure()

    assert (code, text) == (INVALID, f"{name} is not expected: the stream is before Open, which allows Open")


OUT_OF_PLACE: list[tuple[Callable[[Stream], list[pb.TransactionRequest]], str]] = [
    (lambda stream: [stored(stream)], "Store is not expected: the stream is loading, which allows Load or Prepare"),
    (lambda _: [COMMIT], "Commit is not expected: the stream is loading, which allows Load or Prepare"),
    (lambda _: [prepare(b"1"), prepare(b"2")], "Prepare is not expected: the stream is storing, which allows Store or Commit"),
    (lambda _: [prepare(b"1"), load(0, [(1, "a")])], "Load is not expected: the stream is storing, which allows Store or Commit"),
    (
        lambda stream: [prepare(b"1"), stored(stream), COMMIT, COMMIT],
        "Commit is not expected: the stream is loading, which allows Load or Prepare",
    ),
    (
        lambda stream: [prepare(b"1"), COMMIT, stored(stream)],
        "Store is not expected: the stream is loading, which allows Load or Prepare",
    ),
    (lambda _: [pb.TransactionRequest()], "a message holds nothing that is known, and must hold one of Load, Store, Prepare, Commit, Open"),
    (
        lambda _: [pb.TransactionRequest(prepare=prepare(b"1").prepare, commit=COMMIT.commit)],
        "a message holds Prepare and Commit, and must hold one of Load, Store, Prepare, Commit, Open",
    ),
    (lambda _: [prepare(b"")], "Prepare has an empty flow_checkpoint"),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("messages", "error"), OUT_OF_PLACE)
def test_messages_out_of_order_are_refused(
    connector_client: Client, messages: Callable[[Stream], list[pb.TransactionRequest]], error: str
) -> None:
    stream = connector_client.ready()

    stream.send(*messages(stream))

    assert stream.failure() == (INVALID, error)


def test_second_open_is_refused(connector_client: Client) -> None:
    spec = connector_client.materialization()
    connector_client.apply(spec)
    stream, _ = connector_client.open(spec)

    stream.send(opening(spec))

    assert stream.failure() == (INVALID, "Open is not expected: the stream is loading, which allows Load or Prepare")


def test_malformed_open_is_refused(connector_client: Client) -> None:
    spec = connector_client.materialization()

    assert connector_client.stream(opening(spec, version="")).failure() == (
        INVALID,
        "'version' of the request is empty",
    )
    code, text = connector_client.stream(opening(spec, begin=2, end=1)).failure()
    assert (code, text) == (INVALID, "key_begin of Open, 0x2, is above key_end, 0x1")


@pytest.mark.sampled(4)
def test_unknown_binding_is_refused(connector_client: Client, subject: Subject) -> None:
    known = "the session has 1 binding, numbered from 0"
    stream = connector_client.ready()
    stream.send(load(1, [(1, "a")]))
    assert stream.failure() == (INVALID, f"Load names an unknown binding, 1: {known}")

    stream = connector_client.open(connector_client.materialization())[0]
    stream.send(prepare(b"1"), stream.store([thing(1)]), stream.store([thing(1)], binding=7), COMMIT)
    assert stream.failure() == (INVALID, f"Store names an unknown binding, 7: {known}")
    assert subject.rows("things") == {}


def test_load_of_delta_updates_is_refused(connector_client: Client, subject: Subject) -> None:
    if not subject.deltas:
        pytest.skip("it has none")
    spec = connector_client.materialization(delta=True)
    connector_client.apply(spec)
    stream, _ = connector_client.open(spec)

    stream.send(load(0, [(1, "a")]))

    code, text = stream.failure()
    assert code is INVALID
    assert text.startswith("Load names binding '")
    assert text.endswith("', which has delta updates")


def broken(change: Callable[[pb.TransactionRequest.Store], None]) -> Callable[[Stream], pb.TransactionRequest]:
    def message(stream: Stream) -> pb.TransactionRequest:
        request = stored(stream)
        change(request.store)
        return request

    return message


def truncate(store: pb.TransactionRequest.Store) -> None:
    store.arena = store.arena[:-1]


def remove_value(store: pb.TransactionRequest.Store) -> None:
    del store.packed_values[1]


def remove_exists(store: pb.TransactionRequest.Store) -> None:
    store.exists.pop()


def add_delete(store: pb.TransactionRequest.Store) -> None:
    store.delete.append(True)


def shorten_key(store: pb.TransactionRequest.Store) -> None:
    store.packed_keys[1].end -= 1


def swap_document(store: pb.TransactionRequest.Store) -> None:
    document = store.docs_json[0]
    document.begin, document.end = document.end, document.begin


def empty(store: pb.TransactionRequest.Store) -> None:
    store.Clear()


STORES = [
    (truncate, "a slice of a document lies outside its arena of "),
    (remove_value, "the lists of Store are not parallel: keys 2, values 1, documents 2, exists 2, delete 2"),
    (remove_exists, "the lists of Store are not parallel: keys 2, values 2, documents 2, exists 1, delete 2"),
    (add_delete, "the lists of Store are not parallel: keys 2, values 2, documents 2, exists 2, delete 1"),
    (shorten_key, "binding '"),
    (swap_document, "a slice of a document lies outside its arena of "),
    (empty, "Store has no keys"),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("change", "error"), STORES)
def test_malformed_store_is_refused(
    connector_client: Client, subject: Subject, change: Callable[[pb.TransactionRequest.Store], None], error: str
) -> None:
    stream = connector_client.ready()

    stream.send(prepare(b"1"), stored(stream), broken(change)(stream), COMMIT)

    code, text = stream.failure()
    assert code is INVALID
    assert text.startswith(error)
    assert subject.rows("things") == {}
    again = connector_client.open(connector_client.materialization())[0]
    again.transact(b"1", again.store([thing(5)]))
    assert [*subject.rows("things")] == [(5, "a")]


LOADS = [
    (pb.TransactionRequest.Load(), "Load has no keys"),
    (
        pb.TransactionRequest.Load(arena=b"abc", packed_keys=[flow_pb2.Slice(begin=0, end=4)]),
        "a slice of a key lies outside its arena of 3 bytes",
    ),
    (
        pb.TransactionRequest.Load(arena=b"\xff\xff", packed_keys=[flow_pb2.Slice(begin=0, end=2)]),
        "binding 'things' has invalid keys or values: tuple 0 is not a packed tuple: code 0xff at byte 0 of 2",
    ),
    (
        pb.TransactionRequest.Load(arena=pack_key((1,)), packed_keys=[flow_pb2.Slice(begin=0, end=2)]),
        "binding 'things' has invalid keys or values: tuple 0 has 1 element instead of 2",
    ),
]


@pytest.mark.usefixtures("loading")
@pytest.mark.sampled(5)
@pytest.mark.parametrize(("message", "error"), LOADS)
def test_malformed_load_is_refused(connector_client: Client, message: pb.TransactionRequest.Load, error: str) -> None:
    stream = connector_client.ready()

    stream.send(pb.TransactionRequest(load=message))

    code, text = stream.failure()
    assert code is INVALID
    # endpoints may have more in front of a table's name, such as that of its schema
    assert text.replace(text.partition("'")[2].partition("things'")[0], "", 1) == error


def test_stream_may_end_before_open(connector_client: Client) -> None:
    stream = connector_client.ready()
    stream.end()


def test_stream_that_ends_before_commit_stores_nothing(connector_client: Client, subject: Subject) -> None:
    stream = connector_client.ready()
    stream.send(prepare(b"1"))
    stream.documents()
    stream.send(stored(stream))

    stream.leave()

    assert stream.failure() == (INVALID, "the stream has ended before Commit: nothing of this transaction is stored")
    assert subject.rows("things") == {}


@pytest.mark.sampled(4)
def test_stream_that_ends_during_commit_is_committed_or_not(connector_client: Client, subject: Subject) -> None:
    stream = connector_client.ready()
    stream.send(prepare(b"1"))
    stream.documents()
    stream.send(stored(stream), COMMIT)

    stream.leave()

    stream.expect("committed")
    stream.end()
    assert [*subject.rows("things")] == [(1, "a"), (2, "a")]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("moment", ["open", "loading", "prepared", "storing"])
def test_a_cancelled_stream_leaves_nothing(connector_client: Client, subject: Subject, moment: str) -> None:
    stream = connector_client.ready()
    stream.transact(b"1", stream.store([thing(9)]))
    if moment != "open" and subject.loads:
        stream.send(load(0, [(9, "a")]))
    if moment in ("prepared", "storing"):
        stream.send(prepare(b"2"))
        stream.documents()
    if moment == "storing":
        stream.send(stored(stream))

    stream.cancel()

    again, checkpoint = connector_client.open(connector_client.materialization())
    assert checkpoint == (b"1" if subject.transactional else b"")
    assert [*subject.rows("things")] == [(9, "a")]
    # nothing that the first one holds stands in the way
    again.transact(b"2", again.store([thing(10)]))
    assert eventually(lambda: [*subject.rows("things")] == [(9, "a"), (10, "a")])
