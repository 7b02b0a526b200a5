"""What may come when on a stream of transactions."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import ProtocolError
from derive.protocol.driver import Request, Response, StreamOrder

OPENED = ["open", "<opened"]


def play(messages: list[str]) -> StreamOrder:
    """Tell messages in order; a response begins with `<`."""
    order = StreamOrder()
    for message in messages:
        if message.startswith("<"):
            order.response(message[1:])  # type: ignore[arg-type]
        else:
            order.request(message)  # type: ignore[arg-type]
    return order


@pytest.mark.parametrize(
    "messages",
    [
        [],
        OPENED,
        [*OPENED, "prepare", "<prepared", "commit", "<committed"],
        [
            *OPENED,
            "load",
            "load",
            "prepare",
            "<loaded",
            "<loaded",
            "<prepared",
            "store",
            "store",
            "commit",
            "<committed",
        ],
        # loads are answered as they come
        [*OPENED, "load", "<loaded", "load", "<loaded", "prepare", "<prepared"],
        # the next transaction's loads come before the commit of the one before is through
        [*OPENED, "prepare", "<prepared", "commit", "load", "load", "<committed", "<loaded", "prepare", "<prepared"],
        [*OPENED, "prepare", "<prepared", "commit", "load", "prepare", "<committed", "<loaded", "<prepared", "commit"],
    ],
)
def test_messages_in_order_are_accepted(messages: list[str]) -> None:
    play(messages)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        (["load"], "Load is not expected: the stream is before Open, which allows Open"),
        (["commit"], "Commit is not expected: the stream is before Open, which allows Open"),
        (["open", "load"], "Load was sent before Opened arrived"),
        ([*OPENED, "open"], "Open is not expected: the stream is loading, which allows Load or Prepare"),
        ([*OPENED, "store"], "Store is not expected: the stream is loading, which allows Load or Prepare"),
        ([*OPENED, "commit"], "Commit is not expected: the stream is loading, which allows Load or Prepare"),
        ([*OPENED, "prepare", "load"], "Load is not expected: the stream is storing, which allows Store or Commit"),
        ([*OPENED, "prepare", "prepare"], "Prepare is not expected: the stream is storing, which allows Store or Commit"),
        ([*OPENED, "prepare", "store"], "Store was sent before Prepared arrived"),
        ([*OPENED, "prepare", "commit"], "Commit was sent before Prepared arrived"),
        (["<opened"], "Opened was sent without Open"),
        ([*OPENED, "<opened"], "Opened is not expected: the stream is loading, which allows Loaded or Prepared"),
        ([*OPENED, "<prepared"], "Prepared was sent without Prepare"),
        ([*OPENED, "<committed"], "Committed is not expected: the stream is loading, which allows Loaded or Prepared"),
        ([*OPENED, "<loaded"], "the connector sent Loaded in a transaction without Load"),
        ([*OPENED, "prepare", "<loaded"], "the connector sent Loaded in a transaction without Load"),
        ([*OPENED, "load", "prepare", "<prepared", "<loaded"], "Loaded is not expected: the stream is committing, which allows Committed"),
        ([*OPENED, "prepare", "<prepared", "<committed"], "Committed was sent without Commit"),
        # what was loaded in a transaction says nothing about the next one
        ([*OPENED, "load", "prepare", "<prepared", "commit", "<committed", "<loaded"], "the connector sent Loaded in a transaction without Load"),
    ],
)  # fmt: skip
def test_messages_out_of_order_are_refused(messages: list[str], error: str) -> None:
    *before, last = messages
    play(before)

    with pytest.raises(ProtocolError) as caught:
        play(messages)

    assert caught.value.message == error
    assert last


def test_order_tracks_whether_a_transaction_is_storing() -> None:
    states = [play([*OPENED, "prepare", "<prepared", "commit"][:count]).is_storing for count in range(6)]

    assert states == [False, False, False, True, True, False]


@given(st.lists(st.sampled_from([*get_args(Request), *(f"<{name}" for name in get_args(Response))]), max_size=12))
def test_order_tracks_each_direction_separately(messages: list[str]) -> None:
    try:
        play(messages)
    except ProtocolError:
        return
    requests = "".join(message[0] for message in messages if not message.startswith("<"))
    responses = "".join(message[1] for message in messages if message.startswith("<"))
    # o: open; then l, p, s, c: load, prepare, store, commit, over and over, with the last transaction cut anywhere
    import re

    assert re.fullmatch(r"(o(l*ps*c)*(l*|l*ps*))?", requests)
    assert re.fullmatch(r"(o(l*pc)*(l*|l*p))?", responses)
