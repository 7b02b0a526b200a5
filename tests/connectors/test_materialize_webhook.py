"""Webhooks: what is posted, what is repeated and when, and what is not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from patience import PATIENCE_SECONDS
from webhook_server import Hook, dripping, listening

from connectors.kit import (
    Binding,
    ConstraintType,
    Field,
    Materialization,
    Opening,
    ProposedBinding,
    SourceCollection,
    StoredRows,
    Validation,
)
from connectors.materialize_webhook import WebhookConnector
from connectors.materialize_webhook.connector import WebhookSession
from connectors.materialize_webhook.sender import ENDPOINT_SCHEMA, CancelledError, Sender, WebhookConfig
from derive.errors import DeniedError, EndpointError, EndpointGoneError

KEY = Field("id", "/id", ("integer",), must_exist=True, is_key=True)
DOCUMENT = Field("flow_document", "", ("object",))
COLLECTION = SourceCollection("a/bü", ("/id",), {"id": KEY, "flow_document": DOCUMENT})


@pytest.fixture
def hook() -> Iterator[Hook]:
    with listening() as hook:
        yield hook
    while OPEN:
        OPEN.pop().close()


OPEN: list[WebhookSession | Sender] = []
"""What a test has opened."""


def opened(hook: Hook, begin: int = 0, path: str = "b", **config: Any) -> WebhookSession:
    binding = Binding({"path": path}, (path,), COLLECTION, (KEY,), (), "flow_document", {}, delta_updates=True)
    materialization = Materialization("a/m", {"address": hook.address, **config}, (binding,))
    session = WebhookConnector().open(Opening(materialization, "v1", begin, 9))
    OPEN.append(session)
    return session


def rows(*identities: int, deleted: tuple[int, ...] = ()) -> StoredRows:
    return StoredRows(
        key_columns=[identities],
        value_columns=[],
        documents=[b'{"id":%d}' % identity for identity in identities],
        exists=[False] * len(identities),
        deleted=[identity in deleted for identity in identities],
    )


def transact(session: WebhookSession, checkpoint: bytes, *stores: StoredRows) -> None:
    session.prepare(checkpoint)
    for store in stores:
        session.store(0, store)
    session.commit()


def test_documents_are_posted_as_arrays(hook: Hook) -> None:
    session = opened(hook, headers={"Authorization": "Bearer x"})

    transact(session, b"1", rows(1, 2), rows(3))
    transact(session, b"2", rows(1))
    transact(session, b"3")

    assert [(post.path, post.documents) for post in hook.posts] == [
        ("/b", [{"id": 1}, {"id": 2}, {"id": 3}]),
        ("/b", [{"id": 1}]),
    ]
    headers = hook.posts[0].headers
    assert headers["Authorization"] == "Bearer x"
    assert headers["Content-Type"] == "application/json"
    assert headers["Flow-Materialization"] == "a/m"
    assert headers["Flow-Collection"].encode("latin-1").decode() == "a/bü"
    assert headers["Flow-Operation"] == "store"
    assert len(hook.connections) == 1


def test_webhook_posts_nothing_before_the_commit(hook: Hook) -> None:
    session = opened(hook)
    session.prepare(b"1")
    session.store(0, rows(1))

    session.close()

    assert hook.keys == []
    OPEN.clear()


def test_deletions_are_posted_in_separate_requests(hook: Hook) -> None:
    transact(opened(hook), b"1", rows(1, 2, 3, deleted=(2,)))

    assert [(post.headers["Flow-Operation"], post.documents) for post in hook.posts] == [
        ("store", [{"id": 1}, {"id": 3}]),
        ("delete", [{"id": 2}]),
    ]


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({"batch_documents": 2}, [2, 2, 1]),
        ({"batch_bytes": 16}, [2, 2, 1]),
        ({"batch_bytes": 1}, [1, 1, 1, 1, 1]),
        ({}, [5]),
    ],
)
def test_requests_are_limited_in_size(hook: Hook, config: dict[str, Any], sizes: list[int]) -> None:
    transact(opened(hook, **config), b"1", rows(1, 2, 3), rows(4, 5))

    assert [len(post.documents) for post in hook.posts] == sizes
    assert hook.documents("/b") == [{"id": identity} for identity in range(1, 6)]


def test_requests_of_a_transaction_have_one_identity_in_all_sessions(hook: Hook) -> None:
    config: dict[str, Any] = {"batch_documents": 1}
    transact(opened(hook, **config), b"1", rows(1, 2))
    transact(opened(hook, **config), b"1", rows(1, 2))
    transact(opened(hook, **config), b"2", rows(1, 2))
    transact(opened(hook, begin=1, **config), b"1", rows(1, 2))

    assert hook.keys[:2] == hook.keys[2:4]
    assert len({*hook.keys}) == 6


@pytest.mark.parametrize(
    ("address", "path", "target"),
    [
        ("", "b", "/b"),
        ("", "", "/"),
        ("/", "b", "/b"),
        ("/in/", "/b/c", "/in/b/c"),
        ("/in", "", "/in"),
        ("/in?code=1", "b", "/in/b?code=1"),
        ("?code=1", "b?d=2", "/b?d=2&code=1"),
    ],
)
def test_path_is_appended_to_the_address(hook: Hook, address: str, path: str, target: str) -> None:
    transact(opened(hook, path=path, address=hook.address + address), b"1", rows(1))

    assert [post.path for post in hook.posts] == [target]


class Time:
    """Pauses that take no time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.is_over = False

    def pause(self, seconds: float) -> bool:
        if seconds:
            self.pauses.append(seconds)
            self.now += seconds
        return self.is_over

    def clock(self) -> float:
        return self.now


def sender(hook: Hook, time: Time, **config: Any) -> Sender:
    made = Sender(WebhookConfig(hook.address, **config), time.pause, time.clock)
    OPEN.append(made)
    return made


@pytest.mark.parametrize("status", [0, 408, 425, 429, 500, 502, 503, 504])
def test_retryable_requests_are_repeated(hook: Hook, status: int) -> None:
    hook.answers.extend([(status, {})] * 3)
    time = Time()

    sender(hook, time).post("b", b"[1]", {"Idempotency-Key": "k"})

    assert hook.documents("/b") == [1]
    assert hook.keys == ["k"] * 4
    assert len(time.pauses) == 3
    assert all(0.25 * 2**index <= pause <= 0.5 * 2**index for index, pause in enumerate(time.pauses))


def test_retry_pauses_grow_up_to_a_minute(hook: Hook) -> None:
    hook.answers.extend([(503, {})] * 100)
    time = Time()

    with pytest.raises(EndpointGoneError) as caught:
        sender(hook, time).post("", b"[]", {})

    attempts = len(time.pauses) + 1
    host = hook.address.removeprefix("http://")
    what = f"{host} has not taken documents in {attempts} attempts: 503 Service Unavailable: it says why"
    assert caught.value.message == what
    assert caught.value.heals
    assert 200 < time.now <= 300
    assert max(time.pauses) <= 60


def test_requests_are_not_repeated_where_retries_are_disabled(hook: Hook) -> None:
    hook.answers.append((500, {}))
    time = Time()

    with pytest.raises(EndpointGoneError, match="in 1 attempt: 500 Internal Server Error"):
        sender(hook, time, retry_seconds=0).post("", b"[]", {})

    assert time.pauses == []


@pytest.mark.parametrize(("value", "expected"), [("7", 7.0), ("0", 0.0), ("86400", 60.0), ("soon", None)])
def test_retry_after_sets_the_pause(hook: Hook, value: str, expected: float | None) -> None:
    hook.answers.append((429, {"Retry-After": value}))
    time = Time()

    sender(hook, time).post("", b"[]", {})

    if expected is None:
        assert 0.25 <= time.pauses[0] <= 0.5
    else:
        assert time.pauses == ([expected] if expected else [])


def test_retry_after_date_sets_the_pause(hook: Hook) -> None:
    when = datetime.now(UTC) + timedelta(seconds=30)
    hook.answers.append((503, {"Retry-After": format_datetime(when, usegmt=True)}))
    time = Time()

    sender(hook, time).post("", b"[]", {})

    assert 20 < time.pauses[0] <= 30


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (400, EndpointError, "rejected documents: 400 Bad Request: it says why"),
        (404, EndpointError, "rejected documents: 404 Not Found: it says why"),
        (302, EndpointError, "rejected documents: 302 Found: it says why"),
        (401, DeniedError, "denied access: 401 Unauthorized: it says why"),
        (403, DeniedError, "denied access: 403 Forbidden: it says why"),
    ],
)
def test_permanent_refusals_are_not_repeated(hook: Hook, status: int, kind: type[EndpointError], message: str) -> None:
    hook.answers.append((status, {}))

    with pytest.raises(kind, match=message) as caught:
        transact(opened(hook, address=f"{hook.address}/secret-path"), b"1", rows(1))

    assert type(caught.value) is kind
    assert "secret-path" not in str(caught.value)
    assert len(hook.keys) == 1


def test_unreachable_host_is_reported(hook: Hook) -> None:
    with pytest.raises(EndpointGoneError, match=r"127\.0\.0\.1:1 has not taken documents in 1 attempt: .*refused"):
        transact(opened(hook, address="http://127.0.0.1:1/x", retry_seconds=0), b"1", rows(1))


def test_silent_host_is_reported(hook: Hook) -> None:
    hook.answers.append((1, {}))

    with pytest.raises(EndpointGoneError, match="timed out"):
        transact(opened(hook, timeout_seconds=0.05, retry_seconds=0), b"1", rows(1))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("scheme", "at_once", "little"),
    [
        ("http", b"", HEAD),  # the head comes byte by byte
        ("http", HEAD, b"x"),  # the body does
        ("http", b"HTTP/1.1 200 OK\r\n\r\n", b"x"),  # and has no length, so that its end is its end
        ("http", b"HTTP/1.1 503 Later\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        ("https", b"", b"\x16\x03\x03\x40\x00" + b"x" * 100),  # the handshake of TLS does
    ],
)
def test_slow_answer_is_cut_off(scheme: str, at_once: bytes, little: bytes) -> None:
    with dripping(at_once, little) as (address, is_over):
        config = WebhookConfig(f"{scheme}://{address}/x", timeout_seconds=0.3, retry_seconds=0)
        with pytest.raises(EndpointGoneError, match=r"in 1 attempt: timed out"):
            Sender(config, lambda _: False).post("b", b"[]", {})
        assert not is_over.is_set()  # it would have gone on


def test_closed_connection_is_opened_again(hook: Hook) -> None:
    session = opened(hook)
    transact(session, b"1", rows(1))
    hook.answers.append((0, {}))
    time = Time()

    sender(hook, time).post("b", b"[2]", {})

    assert hook.documents("/b") == [{"id": 1}, 2]


def test_stopped_sender_posts_nothing(hook: Hook) -> None:
    hook.answers.append((503, {}))
    time = Time()
    time.is_over = True

    with pytest.raises(CancelledError):
        sender(hook, time).post("", b"[]", {})

    assert hook.keys == []


def test_stream_end_interrupts_a_post(hook: Hook) -> None:
    hook.answers.append((1, {}))
    session = opened(hook)
    errors: list[Exception] = []

    def work() -> None:
        try:
            transact(session, b"1", rows(1))
        except EndpointGoneError as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    assert hook.waiting.wait(PATIENCE_SECONDS)

    session.cancel()

    worker.join(PATIENCE_SECONDS)
    assert [str(error) for error in errors] == ["the stream ended while documents were posted"]
    assert hook.posts == []


def test_requests_of_a_failed_commit_are_posted_again(hook: Hook) -> None:
    hook.answers.extend([(200, {}), (400, {})])
    with pytest.raises(EndpointError):
        transact(opened(hook, batch_documents=1), b"1", rows(1, 2))
    transact(opened(hook, batch_documents=1), b"1", rows(1, 2))

    assert hook.documents("/b") == [{"id": 1}, {"id": 1}, {"id": 2}]
    assert hook.keys[0] == hook.keys[2]


def test_validate_accepts_only_whole_documents() -> None:
    collection = SourceCollection("a/b", ("/id",), {"id": KEY, "x": Field("x", "/x"), "flow_document": DOCUMENT})
    proposed = tuple(ProposedBinding(resource, collection) for resource in ({"path": "b"}, {}))
    left, right = WebhookConnector().validate(Validation("a/m", {}, proposed))

    assert (left.resource_path, right.resource_path) == (("b",), ("/",))
    assert {name: constraint.type for name, constraint in left.constraints.items()} == {
        "id": ConstraintType.LOCATION_REQUIRED,
        "x": ConstraintType.FIELD_FORBIDDEN,
        "flow_document": ConstraintType.FIELD_REQUIRED,
    }
    assert left.delta_updates


def test_invalid_addresses_and_headers_are_refused() -> None:
    schema = Draft202012Validator(ENDPOINT_SCHEMA)

    for address, is_valid in [
        ("https://example.com", True),
        ("http://127.0.0.1:80/a/b?c=d", True),
        ("http://[::1]:80/", True),
        ("example.com", False),
        ("http://", False),
        ("http://a b/", False),
        ("http://a:port/", False),
        ("http://user:word@a/", False),
    ]:
        assert schema.is_valid({"address": address}) is is_valid, address
    assert not schema.is_valid({"address": "http://a", "headers": {"a b": "c"}})
    assert json.dumps(ENDPOINT_SCHEMA)
