"""Checkpoints and fences of every connector whose endpoint has transactions."""

from __future__ import annotations

import grpc
import pytest
from raw_client import COMMIT, Stream, prepare, thing
from served import Client, opening
from subject import Subject

from connectors.kit.connector import BEGIN_FROM_NOTHING

pytestmark = pytest.mark.usefixtures("transactional")

NOTHING = (b"", BEGIN_FROM_NOTHING)
"""Checkpoints of who has none, and of who asks that all begin anew."""

MIDDLE, LAST = 0x8000_0000, 0xFFFF_FFFF


def commit(stream: Stream, checkpoint: bytes, *identities: int) -> None:
    stream.transact(checkpoint, *([stream.store(list(map(thing, identities)))] if identities else []))


def fenced(stream: Stream) -> str:
    """What a stream says that was fenced off, when it commits a document."""
    stream.send(prepare(b"99"))
    try:
        stream.documents()
    except grpc.RpcError:
        pass
    else:
        stream.send(stream.store([thing(99)]), COMMIT)
    code, text = stream.failure()
    assert code is grpc.StatusCode.ABORTED
    return text


@pytest.mark.sampled(3)
def test_open_returns_the_checkpoint_of_the_last_commit(connector_client: Client) -> None:
    spec = connector_client.materialization()
    connector_client.apply(spec)
    stream, checkpoint = connector_client.open(spec)
    assert checkpoint in NOTHING
    commit(stream, b"one", 1)
    commit(stream, bytes(range(256)), 2)

    # what was only prepared does not count
    stream.send(prepare(b"three"))
    stream.documents()
    stream.cancel()

    assert connector_client.open(spec)[1] == bytes(range(256))


@pytest.mark.sampled(4)
def test_newer_stream_fences_the_older_stream(connector_client: Client, subject: Subject) -> None:
    spec = connector_client.materialization()
    connector_client.apply(spec)
    older, _ = connector_client.open(spec)
    commit(older, b"1", 1)

    newer, checkpoint = connector_client.open(spec)
    assert checkpoint == b"1"
    assert "test/materialization" in fenced(older)
    commit(newer, b"2", 2)

    assert [*subject.rows("things")] == [(1, "a"), (2, "a")]
    assert connector_client.open(spec)[1] == b"2"


@pytest.mark.sampled(3)
def test_stream_is_fenced_within_a_transaction(connector_client: Client, subject: Subject) -> None:
    spec = connector_client.materialization()
    connector_client.apply(spec)
    older, _ = connector_client.open(spec)
    older.send(prepare(b"1"))
    older.documents()
    older.send(older.store([thing(1)]))

    connector_client.open(spec)
    older.send(COMMIT)

    assert older.failure()[0] is grpc.StatusCode.ABORTED
    assert subject.rows("things") == {}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("begin", "end"), [(0, MIDDLE - 1), (MIDDLE, LAST), (5, 5), (LAST, LAST), (0, 0)])
def test_narrower_range_fences_the_wider_and_inherits_its_checkpoint(
    connector_client: Client, subject: Subject, begin: int, end: int
) -> None:
    spec = connector_client.materialization()
    connector_client.apply(spec)
    older, _ = connector_client.open(spec)
    commit(older, b"1", 1)

    newer, checkpoint = connector_client.open(spec, begin=begin, end=end)

    assert checkpoint == b"1"
    fenced(older)
    commit(newer, b"2", 2)
    assert [*subject.rows("things")] == [(1, "a"), (2, "a")]
    assert connector_client.open(spec, begin=begin, end=end)[1] == b"2"


@pytest.mark.sampled(3)
def test_both_halves_of_a_split_continue(connector_client: Client) -> None:
    spec = connector_client.materialization()
    connector_client.apply(spec)
    whole_range, _ = connector_client.open(spec)
    commit(whole_range, b"1", 1)

    left, left_checkpoint = connector_client.open(spec, end=MIDDLE - 1)
    commit(left, b"2", 2)
    right, right_checkpoint = connector_client.open(spec, begin=MIDDLE)
    commit(right, b"3", 3)
    commit(left, b"4", 4)

    assert (left_checkpoint, right_checkpoint) == (b"1", b"1")
    assert connector_client.open(spec, end=MIDDLE - 1)[1] == b"4"
    assert connector_client.open(spec, begin=MIDDLE)[1] == b"3"
    # a half of a half inherits from the half, which is nearer than all
    assert connector_client.open(spec, begin=0, end=9)[1] == b"4"


@pytest.mark.sampled(3)
def test_overlapping_ranges_fence_one_another(connector_client: Client) -> None:
    spec = connector_client.materialization()
    connector_client.apply(spec)
    left, _ = connector_client.open(spec, end=MIDDLE)
    commit(left, b"1", 1)

    right, checkpoint = connector_client.open(spec, begin=MIDDLE)

    assert checkpoint in NOTHING
    fenced(left)
    commit(right, b"2", 2)


@pytest.mark.sampled(3)
def test_adjacent_ranges_do_not_fence_one_another(connector_client: Client, subject: Subject) -> None:
    spec = connector_client.materialization()
    connector_client.apply(spec)
    left, _ = connector_client.open(spec, end=MIDDLE - 1)
    right, _ = connector_client.open(spec, begin=MIDDLE)

    for number in range(1, 6):
        commit(left, b"%d" % number, number)
        commit(right, b"%d" % -number, -number)

    assert connector_client.open(spec, end=MIDDLE - 1)[1] == b"5"
    assert connector_client.open(spec, begin=MIDDLE)[1] == b"-5"
    assert {identity for identity, _ in subject.rows("things")} == {*range(-5, 6)} - {0}


@pytest.mark.sampled(3)
def test_materializations_do_not_fence_one_another(connector_client: Client) -> None:
    one, other = (
        connector_client.materialization(["one"], name="test/one"),
        connector_client.materialization(["other"], name="test/other"),
    )
    connector_client.apply(one)
    connector_client.apply(other)
    first, _ = connector_client.open(one)
    commit(first, b"1", 1)

    second, checkpoint = connector_client.open(other)

    assert checkpoint in NOTHING
    commit(second, b"2", 2)
    commit(first, b"3", 3)
    assert (connector_client.open(one)[1], connector_client.open(other)[1]) == (b"3", b"2")


@pytest.mark.sampled(3)
def test_narrower_ranges_are_reported_until_the_next_commit(connector_client: Client) -> None:
    """A range around others has their checkpoints, and once it commits, they count no more."""
    spec = connector_client.materialization()
    connector_client.apply(spec)
    commit(connector_client.open(spec)[0], b"0", 0)
    for begin, end, checkpoint in ((0, MIDDLE - 1, b"1"), (MIDDLE, LAST, b"2")):
        commit(connector_client.open(spec, begin=begin, end=end)[0], checkpoint, begin)
    for _ in range(2):
        stream = connector_client.stream(opening(spec), spec.bindings[0].field_selection.values)
        opened = stream.expect("opened")
        if not opened.narrower:
            pytest.skip("it does not report them")
        assert (opened.flow_checkpoint, sorted(opened.narrower)) == (b"0", [b"1", b"2"])
    commit(stream, b"3", 3)
    assert connector_client.open(spec, begin=MIDDLE, end=LAST)[1] == b"3"
