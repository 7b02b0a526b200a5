"""What is asked of a compute instance, as the event loop takes the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from derive.algebra.types import Datum, Row
from derive.compute.protocol.messages import PeekResponse, Query
from derive.errors import FlowError, SqlError
from derive.handover import Handover
from derive.sql.batches import of_rows
from derive.sql.execution.state import State

_PATIENCE_SECONDS = 0.05
"""How long one replica is waited for before others are asked as well."""

_LOOK_SECONDS = 0.25
"""How often it is looked whether the statement is cancelled. A cursor may take rows when its statement is over."""


async def ask(
    state: State, query: Query, time: int, arguments: Sequence[Datum] = ()
) -> AsyncIterator[Sequence[Row]] | None:
    """The rows of a query over dataflows at a time, in batches; None if no replica has them.

    It waits for the first of them, until a replica is far enough.

    Raises:
        SqlError: there is an error where there should be rows; or the statement is cancelled.
    """
    controller = state.coordinator.computing.controller
    handover: Handover[PeekResponse] = Handover(is_patient=controller.is_local)
    uuid = controller.peek(query, time, handover.put, arguments=arguments, most_bytes=state.most_bytes)
    first = handover.get_nowait()
    if first is None:
        late = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, controller.hasten, uuid)
        try:
            with state.interruptible():
                while first is None:
                    first = await handover.get()
        except BaseException:
            _Answer(state, handover, uuid).close()
            raise
        finally:
            late.cancel()
    if isinstance(first.result, SqlError):
        maintained = state.coordinator.maintained
        raise await asyncio.to_thread(maintained.stored_error, first.result, query.reads, time)
    if isinstance(first.result, FlowError):
        return None
    if first.is_last:
        return of_rows(first.result)
    answer = _Answer(state, handover, uuid)
    answer.rows = first.result
    return answer


class _Answer:
    """An answer that has several parts.

    Attributes:
        rows: that have come and were not taken yet.
    """

    def __init__(self, state: State, handover: Handover[PeekResponse], uuid: int) -> None:
        self._state, self._handover, self._uuid = state, handover, uuid
        self.rows: Sequence[Row] = ()
        self._is_whole = False

    def __aiter__(self) -> _Answer:
        return self

    async def __anext__(self) -> Sequence[Row]:
        while not self.rows:
            if self._is_whole:
                raise StopAsyncIteration
            try:
                response = await self._handover.get(_LOOK_SECONDS)
                self._state.check_stopped()
                if response is None:
                    continue
                if isinstance(response.result, SqlError):
                    raise response.result
                if isinstance(response.result, FlowError):
                    raise SqlError("XX000", response.result.message, hint=response.result.hint)
            except BaseException:
                self.close()
                raise
            self.rows, self._is_whole = response.result, response.is_last
        rows, self.rows = self.rows, ()
        return rows

    async def aclose(self) -> None:
        """Nobody takes the rest."""
        self.close()

    def close(self) -> None:
        """Nobody takes the rest."""
        self._state.coordinator.computing.controller.cancel(self._uuid)
        self._handover.close()
        self._is_whole, self.rows = True, ()
