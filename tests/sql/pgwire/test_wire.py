"""One client's connection as messages."""

from __future__ import annotations

import asyncio

import pytest

from derive.errors import SqlError, Violation
from derive.sql.pgwire.messages import ConnectionEnded, Wire, error

SYNC = b"S\x00\x00\x00\x04"


async def in_a_callback(wire: Wire, data: bytes, task: asyncio.Task[tuple[bytes, bytes]]) -> bool:
    """Have something come in as asyncio does that; whether a task is done right behind it."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def come() -> None:
        wire.data_received(data)
        done.set_result(task.done())

    loop.call_soon(come)
    return bool(await done)


async def test_receive_returns_once_a_message_is_complete() -> None:
    wire = Wire(lambda _: None)
    task = asyncio.create_task(wire.receive())
    await asyncio.sleep(0)
    assert not await in_a_callback(wire, SYNC[:3], task)
    assert await in_a_callback(wire, SYNC[3:], task)
    assert await task == (b"S", b"")


async def test_receive_can_be_cancelled() -> None:
    wire = Wire(lambda _: None)
    task = asyncio.create_task(wire.receive())
    await asyncio.sleep(0)
    task.cancel()
    wire.data_received(SYNC)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await wire.receive() == (b"S", b"")


async def test_receive_ends_with_the_connection() -> None:
    wire = Wire(lambda _: None)
    task = asyncio.create_task(wire.receive())
    await asyncio.sleep(0)
    wire.connection_lost(None)
    with pytest.raises(ConnectionEnded):
        await task


def test_error_response_names_the_violated_constraint() -> None:
    named = error(SqlError("23505", "duplicate", violation=Violation("t", "t_pkey")))
    unnamed = error(SqlError("23502", "null", violation=Violation("t", column="a")))
    assert named[5:].split(b"\0")[4:] == [b"spublic", b"tt", b"nt_pkey", b"", b""]
    assert unnamed[5:].split(b"\0")[4:] == [b"spublic", b"tt", b"ca", b"", b""]
