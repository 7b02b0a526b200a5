"""Statements for PostgreSQL that travel together, in pipeline mode of its protocol.

All statements are sent before the first answer is awaited, and so take one round trip. An error ends the statements
after it. The only message after the last statement is `Sync`: with another one, the server would not end the
transaction of a stopped process (`idle_in_transaction_session_timeout`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.generators import fetch_many, send
from psycopg.pq import ExecStatus, Format, PipelineStatus
from psycopg.pq.abc import PGresult
from typing_extensions import override

from derive.storage.metadata.postgres_stall import Stall, answers

T = TypeVar("T")

_USES = 3
"""Number of uses of a statement after which it is prepared."""

_MOST_PREPARED, _MOST_COUNTED = 500, 4_096
"""Numbers of prepared statements, and of counted ones."""

_UNPREPARED = ("BEGIN", "COMMIT", "DECLARE", "FETCH", "SET")
"""Commands that are not prepared; the result of FETCH depends on the cursor."""

_INTEGER, _BYTES, _UNKNOWN = 20, 17, 0
"""Types of parameters: `bigint`, `bytea`, and the type that fits its place."""

Take: TypeAlias = Callable[[Iterable[Any]], object]
"""A function that takes the rows of a statement."""

Statement: TypeAlias = tuple[str, Sequence[Any], Take | None]
"""A statement with `?` as placeholders, its values, and the function that takes its rows."""

LOOP_SECONDS = 2.0
"""Time for which a thread with an event loop waits for an answer, in seconds: all clients of the loop wait, too."""

_LOOK_SECONDS = 0.1
"""Interval of checks for signals and silence, in seconds."""

_Key: TypeAlias = tuple[str, tuple[int, ...]]
"""A statement with the types of its parameters."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed when nothing refers to it, as connections of SQLite are, or if its server is silent.

    Attributes:
        is_ending: whether the answer to `end_soon` was not read yet; then only `execute_together` may follow.
        stall: stall of the server.
        patience_seconds: time without an answer after which the server is asked on another connection, in seconds.
        answer_seconds: time limit of the answer to this question, in seconds.
        is_hurried: whether to give up after `LOOP_SECONDS` instead.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stall, self.is_hurried = Stall(), False
        self.patience_seconds = self.answer_seconds = 10.0
        self._prepared_names: dict[_Key, bytes] = {}
        self._uses: dict[_Key, int] = {}
        self._names = (f"flowctl_{number}".encode() for number in count())
        self.is_ending = False

    def __del__(self, *_: Any) -> None:
        self.close()

    @override
    def wait(self, gen: Generator[Any, Any, T], interval: float = _LOOK_SECONDS, timeout: float | None = None) -> T:
        """Wait for answers of the server.

        Raises:
            psycopg.OperationalError: the server is silent; then the connection is closed.
        """
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        heard = time.monotonic()
        try:
            desired = next(gen)
            while True:
                ready = yield desired
                now = time.monotonic()
                if ready:
                    heard = now
                elif now - heard > (LOOP_SECONDS if self.is_hurried else self.patience_seconds):
                    self._require_answer()
                    heard = time.monotonic()
                desired = gen.send(ready)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _require_answer(self) -> None:
        """Raise an error if the server is silent on other connections, too."""
        host, port = self.info.hostaddr or self.info.host, self.info.port
        if self.is_hurried or not answers(host, port, self.answer_seconds):
            self.ask_later()
            self.close()
            raise psycopg.OperationalError("the server does not answer")

    def ask_later(self) -> None:
        """Note that the server is silent, until it answers a question in the background."""
        with suppress(psycopg.OperationalError):  # the connection is closed
            host, port = self.info.hostaddr or self.info.host, self.info.port
            self.stall.begin(host, port, self.answer_seconds)

    def execute_together(self, statements: Sequence[Statement]) -> None:
        """Execute statements in one round trip; the error is that of the first failed statement."""
        try:
            results, failure = self.wait(self._exchange(statements))
        except psycopg.Error:
            raise
        except BaseException:  # Ctrl-C, which may also have interrupted the cancellation
            if self.info.pipeline_status is not PipelineStatus.OFF:
                self.close()
            raise
        if failure is not None:
            raise failure
        transformer = Transformer(self)
        for (_, _, take), result in zip(statements, results, strict=True):
            if take is None:
                continue
            if result.status != ExecStatus.TUPLES_OK:
                take(())
                continue
            transformer.set_pgresult(result)
            take(transformer.load_rows(0, result.ntuples, tuple))

    def end_soon(self) -> None:
        """Roll back, and let the next call read the answer."""
        self.pgconn.enter_pipeline_mode()
        self.pgconn.send_query_params(b"ROLLBACK", None)
        self.pgconn.pipeline_sync()
        self.pgconn.flush()
        self.is_ending = True

    def settle(self) -> None:
        """Read the answer to `end_soon`, before the connection is used otherwise."""
        if self.is_ending:
            self.execute_together([])

    def _exchange(
        self, statements: Sequence[Statement]
    ) -> Generator[Any, Any, tuple[list[PGresult], psycopg.Error | None]]:
        """Send statements; return their results, and the first error.

        The error is not raised: after Ctrl-C, psycopg closes a connection whose answers end with an error.
        """
        if not self.is_ending:
            self.pgconn.enter_pipeline_mode()
        prepared: dict[_Key, bytes] = {}
        sent: list[_Key | None] = []  # for each expected result, the key of a statement that was prepared
        for statement, values, _ in statements:
            sent += self._send(statement, values, prepared)
        self.pgconn.pipeline_sync()
        yield from send(self.pgconn)
        failure: psycopg.Error | None = None
        results = []
        try:
            if self.is_ending:
                self.is_ending = False
                yield from fetch_many(self.pgconn)
                yield from fetch_many(self.pgconn)
            for key in sent:
                result = (yield from fetch_many(self.pgconn))[0]
                if result.status == ExecStatus.FATAL_ERROR and failure is None:
                    failure = errors.error_from_result(result, encoding="utf-8")
                if key is None:
                    results.append(result)
                elif result.status == ExecStatus.COMMAND_OK:
                    self._prepared_names[key] = prepared[key]
            yield from fetch_many(self.pgconn)
            self.pgconn.exit_pipeline_mode()
        except psycopg.Error as exc:  # the server may tell why it ends the connection
            failure = failure or exc
        return results, failure

    def _send(self, statement: str, values: Sequence[Any], prepared: dict[_Key, bytes]) -> list[_Key | None]:
        """Send a statement; return a key for each expected result, as in `_exchange`."""
        types = tuple([_type_of(value) for value in values])
        formats = [Format.BINARY if type_ == _BYTES else Format.TEXT for type_ in types]
        texts = [_text_of(value) for value in values]
        key = statement, types
        name = self._prepared_names.get(key) or prepared.get(key)
        keys: list[_Key | None] = [None]
        if name is None and self._is_frequent(key):
            name = prepared[key] = next(self._names)
            self.pgconn.send_prepare(name, _numbered(statement), types)
            keys = [key, None]
        if name is None:
            self.pgconn.send_query_params(_numbered(statement), texts, types, formats)
        else:
            self.pgconn.send_query_prepared(name, texts, formats)
        return keys

    def _is_frequent(self, key: _Key) -> bool:
        """Count a use of a statement; return true if it is to be prepared."""
        if len(self._prepared_names) >= _MOST_PREPARED or key[0].startswith(_UNPREPARED):
            return False
        if len(self._uses) >= _MOST_COUNTED:
            self._uses.clear()
        self._uses[key] = uses = self._uses.get(key, 0) + 1
        return uses > _USES


@cache
def _numbered(statement: str) -> bytes:
    """Return a statement with numbered placeholders.

    >>> _numbered("SELECT ? + ?")
    b'SELECT $1 + $2'
    """
    first, *rest = statement.split("?")
    return (first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))).encode()


def _type_of(value: Any) -> int:
    if isinstance(value, int):
        return _INTEGER
    return _BYTES if isinstance(value, bytes) else _UNKNOWN


def _text_of(value: Any) -> bytes | None:
    """Return a value as the server reads it; U+0000, which only messages have, becomes U+FFFD."""
    if value is None or isinstance(value, bytes):
        return value
    return str(int(value)).encode() if isinstance(value, int) else str(value).replace("\0", "\ufffd").encode()
