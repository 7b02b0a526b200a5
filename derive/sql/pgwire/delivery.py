"""The result of a statement, on its way to the client, no faster than that reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext

from derive.sql.outcome import Result, Session
from derive.sql.pgwire import messages
from derive.sql.pgwire.copying import CopyIn, copy_data
from derive.sql.pgwire.portal import Portal
from derive.sql.pgwire.values import data_rows
from derive.sql.pgwire.wire import Wire
from derive.sql.pgwire.work import Work


class Delivery:
    """Sends results over a connection."""

    def __init__(self, wire: Wire, session: Session, work: Work) -> None:
        self._wire = wire
        self._session = session
        self._work = work

    async def carry_out(self, portal: Portal, most: int, *, is_described: bool) -> str | None:
        """Carry a portal out, and send what it gives.

        Args:
            portal: what is carried out, or goes on.
            most: how many rows are wanted now; 0 for all.
            is_described: whether the columns are sent before the rows.

        Returns:
            The tag of the statement; None if it may have more rows.
        """
        result = await portal.begin(self._session)
        for said in result.notices:
            self._wire.send(messages.notice(said))
        if result.copy_in:
            return result.tag(await self._copy_in(result, result.copy_in))
        if result.columns is None:
            return result.tag(0)
        if result.copy_out:
            most = 0
            self._wire.send(messages.copy_response(b"H", len(result.columns), is_binary=result.copy_out.is_binary))
            if result.copy_out.header:
                self._wire.send(copy_data([result.copy_out.header]))
        elif is_described:
            self._wire.send(portal.shape.description)
        if result.is_prompt:
            await self._let_read()  # the first row may be long in coming
        with self._work.settled() if result.has_happened else nullcontext():
            count = await self._send_rows(portal, result, most)
        if result.copy_out:
            if result.copy_out.end:
                self._wire.send(copy_data([result.copy_out.end()]))
            self._wire.send(messages.COPY_DONE)
        return result.tag(count) if portal.is_done else None

    async def _send_rows(self, portal: Portal, result: Result, most: int) -> int:
        encoders = portal.shape.encoders
        count = 0
        while not most or count < most:
            wanted = most and most - count
            rows = portal.ready_rows(wanted)
            if rows is None:
                rows = await portal.next_rows(wanted)
            if portal.is_done:
                break
            count += len(rows)
            if result.copy_out:
                self._wire.send(copy_data(result.copy_out.lines(rows)))
            else:
                self._wire.send(data_rows(rows, encoders))
            if self._wire.has_enough or (result.is_prompt and not portal.has_batch_left):
                await self._let_read()
        return count

    async def _let_read(self) -> None:
        """Send what was gathered, and let the client read it, and others work."""
        self._wire.flush()
        if self._wire.is_full:
            with self._work.waiting_for_client():
                await self._wire.drained()
        else:
            await asyncio.sleep(0)
        self._work.require_going_on()

    async def _copy_in(self, result: Result, take: Callable[[AsyncIterator[bytes]], Awaitable[int]]) -> int:
        self._wire.send(messages.copy_response(b"G", len(result.columns or ()), is_binary=result.is_binary))
        self._wire.flush()
        copy = CopyIn(self._receive)
        count = await take(copy.pieces())
        await copy.drain()
        return count

    async def _receive(self) -> tuple[bytes, bytes]:
        with self._work.waiting_for_client():
            return await self._wire.receive()
