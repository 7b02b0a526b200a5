"""The kit beyond what the conformance tests see: connectors that fail, clients that read slowly, and the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from forked_flowctl import Flowctl
from patience import PATIENCE_SECONDS
from silent_connections import SILENCES, await_ends, silent
from typing_extensions import override

from connectors.kit import (
    Application,
    ConnectorSpec,
    DriverCheckpoint,
    Opening,
    Session,
    StoredRows,
    ValidatedBinding,
    Validation,
    Value,
)
from connectors.kit.servicer import ConnectorServer
from derive.document.key import pack
from derive.errors import EndpointGoneError, FencedError, FlowError, InternalError, ProtocolError, UsageError
from derive.protocol.driver import DriverClient, error_of, open_channel
from derive.protocol.stubs import flow_pb2
from derive.protocol.stubs import materialize_pb2 as pb

ROOT = Path(__file__).parents[2]


class Idle:
    """A session that does nothing."""

    checkpoint = b""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None: ...

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        return iter(())

    def prepare(self, flow_checkpoint: bytes) -> DriverCheckpoint | None:
        return None

    def store(self, binding: int, rows: StoredRows) -> None: ...

    def commit(self) -> None: ...

    def close(self) -> None:
        self.closed.set()


class Connector:
    """A connector of one session."""

    name = "materialize-nothing"

    def __init__(self, session: Session | None = None, error: Exception | None = None) -> None:
        self._session, self._error = session or Idle(), error
        self.asked: list[Any] = []

    def spec(self) -> ConnectorSpec:
        return ConnectorSpec({"type": "object"}, {"type": "object"}, "https://example.com")

    def _take(self, request: object) -> None:
        self.asked.append(request)
        if self._error:
            raise self._error

    def validate(self, request: Validation) -> list[ValidatedBinding]:
        self._take(request)
        return []

    def apply(self, request: Application) -> str:
        self._take(request)
        return "done"

    def open(self, opening: Opening) -> Session:
        self._take(opening)
        return self._session


@contextmanager
def serving(connector: Connector) -> Iterator[DriverClient]:
    server = ConnectorServer(connector, "127.0.0.1:0")
    with open_channel(server.address) as channel:
        yield DriverClient(channel)
    server.stop()


_SILENT_SECONDS = 2.0
"""Time for the handshake of a connection, also of the runtime that must get through on a busy machine."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("said", sorted({*SILENCES} - {"no call"}))
def test_silent_connections_do_not_block_a_runtime(said: str) -> None:
    """They are as many as a connector accepts, and more, and it closes them."""
    server = ConnectorServer(Connector(), "127.0.0.1:0", silent_seconds=_SILENT_SECONDS)
    with silent(server.address, 300, SILENCES[said]) as connections, open_channel(server.address) as channel:
        DriverClient(channel).spec(pb.SpecRequest(), timeout=PATIENCE_SECONDS, wait_for_ready=True)
        await_ends(connections)
    server.stop()


def materialization() -> flow_pb2.MaterializationSpec:
    spec = flow_pb2.MaterializationSpec(materialization="a/m", endpoint_spec_json='{"password":"secret"}')
    projections = [
        flow_pb2.Projection(ptr="/id", field="id", is_primary_key=True),
        flow_pb2.Projection(ptr="/text", field="text"),
    ]
    projections[1].inference.types.extend(["string", "null"])
    projections[1].inference.string.format = "date"
    collection = flow_pb2.CollectionSpec(collection="a/b", key_ptrs=["/id"], projections=projections)
    selection = flow_pb2.FieldSelection(keys=["id"], values=["text"], field_config_json={"text": '{"type":"clob"}'})
    spec.bindings.add(
        resource_spec_json='{"table":"t"}', resource_path=["t"], collection=collection, field_selection=selection
    )
    return spec


OPEN = pb.TransactionRequest(
    open=pb.TransactionRequest.Open(materialization=materialization(), version="v1", key_begin=1, key_end=2)
)
LOAD = pb.TransactionRequest(
    load=pb.TransactionRequest.Load(arena=pack([1]), packed_keys=[flow_pb2.Slice(begin=0, end=2)])
)
PREPARE = pb.TransactionRequest(prepare=pb.TransactionRequest.Prepare(flow_checkpoint=b"1"))
COMMIT = pb.TransactionRequest(commit=pb.TransactionRequest.Commit())


def names(responses: Any) -> Iterator[str]:
    for response in responses:
        yield response.ListFields()[0][0].name


def held(*requests: pb.TransactionRequest, until: threading.Event) -> Iterator[pb.TransactionRequest]:
    """Requests, after which the client has nothing to say for a while."""
    yield from requests
    until.wait(PATIENCE_SECONDS)


def test_connector_receives_the_opening() -> None:
    connector = Connector()
    with serving(connector) as client:
        list(client.transactions(iter([OPEN]), timeout=PATIENCE_SECONDS))

    (opening,) = connector.asked
    assert (opening.version, opening.key_begin, opening.key_end, opening.driver_checkpoint) == ("v1", 1, 2, b"")
    assert opening.materialization.config == {"password": "secret"}
    assert "secret" not in repr(opening)
    (binding,) = opening.materialization.bindings
    assert (binding.resource, binding.resource_path, binding.document) == ({"table": "t"}, ("t",), None)
    assert [field.name for field in (*binding.keys, *binding.values)] == ["id", "text"]
    assert (binding.values[0].types, binding.values[0].format) == (("null", "string"), "date")
    assert binding.field_config == {"text": {"type": "clob"}}


ERRORS = [
    (EndpointGoneError("no route to db"), EndpointGoneError, "no route to db", grpc.StatusCode.UNAVAILABLE),
    (FencedError("another one"), FencedError, "another one", grpc.StatusCode.ABORTED),
    (KeyError("x"), InternalError, "a defect of the connector: KeyError: 'x'", grpc.StatusCode.INTERNAL),
]


@pytest.mark.parametrize(("raised", "kind", "message", "code"), ERRORS)
def test_connector_errors_reach_the_runtime(
    raised: Exception, kind: type[FlowError], message: str, code: grpc.StatusCode
) -> None:
    application = pb.ApplyRequest(materialization=materialization(), version="v1")
    with serving(Connector(error=raised)) as client:
        with pytest.raises(grpc.RpcError) as applied:
            client.apply(application, timeout=PATIENCE_SECONDS)
        with pytest.raises(grpc.RpcError) as opened:
            list(client.transactions(iter([OPEN]), timeout=PATIENCE_SECONDS))

    for caught in (applied, opened):
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is code
        error = error_of(caught.value, "it")
        assert type(error) is kind
        assert error.message == message


def test_connector_that_validates_too_few_bindings_is_refused() -> None:
    request = pb.ValidateRequest(materialization="a/m", endpoint_spec_json="{}")
    request.bindings.add(resource_spec_json="{}", collection=materialization().bindings[0].collection)
    with serving(Connector()) as client, pytest.raises(grpc.RpcError) as caught:
        client.validate(request, timeout=PATIENCE_SECONDS)

    error = error_of(caught.value, "it")
    assert type(error) is ProtocolError
    assert error.message == "materialize-nothing has validated 0 of 1 binding"


@pytest.mark.parametrize("error", [FencedError("another one"), OSError("disk")])
def test_a_commit_that_fails_is_reported_at_once(error: Exception) -> None:
    class Failing(Idle):
        @override
        def commit(self) -> None:
            raise error

    session, done = Failing(), threading.Event()
    with serving(Connector(session)) as client:
        responses = client.transactions(held(OPEN, PREPARE, COMMIT, until=done), timeout=PATIENCE_SECONDS)
        with pytest.raises(grpc.RpcError) as caught:
            list(responses)
        assert session.closed.wait(PATIENCE_SECONDS)
        done.set()

    assert str(error) in error_of(caught.value, "it").message


def test_committed_is_sent_without_further_requests() -> None:
    done = threading.Event()
    with serving(Connector()) as client:
        responses = names(client.transactions(held(OPEN, PREPARE, COMMIT, until=done), timeout=PATIENCE_SECONDS))
        assert [next(responses) for _ in range(3)] == ["opened", "prepared", "committed"]
        done.set()
        assert list(responses) == []


def test_loads_during_a_commit_are_answered_after_it() -> None:
    class Slow(Idle):
        def __init__(self) -> None:
            super().__init__()
            self.is_loading = threading.Event()
            self.calls: list[str] = []

        @override
        def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
            self.calls.append(f"load {keys}")
            self.is_loading.set()

        @override
        def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
            self.calls.append("loaded")
            yield 0, [b"{}"] * (len(self.calls) > 2)

        @override
        def commit(self) -> None:
            # It goes on only when the next transaction's Load is there.
            assert self.is_loading.wait(PATIENCE_SECONDS)
            self.calls.append("commit")

    session = Slow()
    requests = [OPEN, PREPARE, COMMIT, LOAD, PREPARE]
    with serving(Connector(session)) as client:
        responses = []
        with pytest.raises(grpc.RpcError, match="the stream has ended before Commit"):
            for name in names(client.transactions(iter(requests), timeout=PATIENCE_SECONDS)):
                responses.append(name)

    assert session.calls == ["loaded", "load [(1,)]", "commit", "loaded"]
    assert responses == ["opened", "prepared", "committed", "loaded", "prepared"]


def test_client_that_does_not_read_uses_bounded_memory() -> None:
    class Generous(Idle):
        def __init__(self) -> None:
            super().__init__()
            self.given = 0

        @override
        def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
            for _ in range(1000):
                self.given += 1
                yield 0, [b'"' + b"x" * 1_000_000 + b'"']

    session, done = Generous(), threading.Event()
    with serving(Connector(session)) as client:
        responses: Any = client.transactions(held(OPEN, LOAD, PREPARE, until=done), timeout=PATIENCE_SECONDS)
        assert next(names(responses)) == "opened"
        assert next(names(responses)) == "loaded"
        responses.cancel()
        # it is told that nobody reads any more, and has made no more than fits into queues on the way
        assert session.closed.wait(PATIENCE_SECONDS)
        assert session.given < 100
        done.set()


def test_session_is_notified_of_the_end_of_its_stream() -> None:
    class Waiting(Idle):
        def __init__(self) -> None:
            super().__init__()
            self.is_committing, self.is_cancelled = threading.Event(), threading.Event()

        @override
        def commit(self) -> None:
            self.is_committing.set()
            assert self.is_cancelled.wait(PATIENCE_SECONDS)
            raise EndpointGoneError("the stream was ended")

        def cancel(self) -> None:
            self.is_cancelled.set()

    session, done = Waiting(), threading.Event()
    with serving(Connector(session)) as client:
        responses: Any = client.transactions(held(OPEN, PREPARE, COMMIT, until=done), timeout=PATIENCE_SECONDS)
        assert session.is_committing.wait(PATIENCE_SECONDS)
        responses.cancel()

        assert session.closed.wait(PATIENCE_SECONDS)
        done.set()


def test_unusable_listen_addresses_are_refused() -> None:
    with pytest.raises(UsageError, match="'7000' is not an address"):
        ConnectorServer(Connector(), "7000")
    server = ConnectorServer(Connector(), "127.0.0.1:0")
    with pytest.raises(UsageError, match=f"cannot listen at {server.address}"):
        ConnectorServer(Connector(), server.address)
    server.stop()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as packages are installed into, with one connector, and one that cannot be loaded."""
    info = tmp_path / "nothing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[derive.materialize]\nmaterialize-nothing = test_kit_server:Connector\nmaterialize-broken = no_such:Module\n"
    )
    return tmp_path


def flowctl(site: Path, *arguments: str, **options: Any) -> Flowctl:
    """Start `flowctl connector` where the site's packages are installed."""
    path = os.pathsep.join([str(site), str(Path(__file__).parent), str(ROOT)])
    return Flowctl(
        ["connector", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    address = process.stdout.readline().rstrip("\n")
    host, _, port = address.partition(":")
    assert host == "127.0.0.1", process.communicate(timeout=PATIENCE_SECONDS)
    assert int(port) > 0
    return address


def is_served(address: str) -> bool:
    with open_channel(address) as channel:
        return bool(DriverClient(channel).spec(pb.SpecRequest(), timeout=PATIENCE_SECONDS).documentation_url)


def test_connectors_are_listed(site: Path) -> None:
    out, err = flowctl(site, "list", "-o", "json").communicate(timeout=PATIENCE_SECONDS)

    assert err == ""
    listed = {row["connector"]: row["class"] for row in map(json.loads, out.splitlines())}
    assert listed["materialize-nothing"] == "test_kit_server:Connector"
    assert list(listed) == sorted(listed)


def test_a_served_connector_ends_with_its_standard_input(site: Path) -> None:
    process = flowctl(site, "serve", "materialize-nothing", stdin=subprocess.PIPE)
    address = address_of(process)
    assert is_served(address)

    # Ctrl-C goes to all processes of a terminal; this one leaves it to the one that started it.
    process.send_signal(signal.SIGINT)
    assert is_served(address)

    out, err = process.communicate("", timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_without_standard_input_ends_with_a_signal(site: Path, number: signal.Signals) -> None:
    process = flowctl(site, "serve", "materialize-nothing", stdin=subprocess.DEVNULL)
    assert is_served(address_of(process))

    process.send_signal(number)

    assert process.communicate(timeout=PATIENCE_SECONDS) == ("", "")
    assert process.returncode == 0


def test_open_streams_do_not_keep_the_server_running(site: Path) -> None:
    process = flowctl(site, "serve", "materialize-nothing", stdin=subprocess.PIPE)
    done = threading.Event()
    with open_channel(address_of(process)) as channel:
        responses = names(DriverClient(channel).transactions(held(OPEN, until=done), timeout=PATIENCE_SECONDS))
        assert next(responses) == "opened"

        process.communicate("", timeout=PATIENCE_SECONDS)
        done.set()

        assert process.returncode == 0
        with pytest.raises(grpc.RpcError) as caught:
            next(responses)
    assert error_of(caught.value, "it").heals


FAILURES = [
    (("serve", "materialize-nothin"), 1, "no materialize connector 'materialize-nothin' is installed"),
    (("serve", "materialize-broken"), 1, "the materialize connector 'materialize-broken' (no_such:Module) cannot be"),
    (("serve", "materialize-nothing", "--listen", "7000"), 2, "'7000' is not an address"),
]


@pytest.mark.parametrize(("arguments", "status", "message"), FAILURES)
def test_unservable_connectors_are_refused(site: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
    process = flowctl(site, *arguments, stdin=subprocess.PIPE)

    out, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, out) == (status, "")
    assert message in err
