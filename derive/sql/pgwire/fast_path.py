"""Fast paths: point lookups that are answered at once, and INSERTs of a row that need no wait.

For repeated lookups, most clients send Bind, Execute and Sync of a prepared statement together. If the session returns
the rows without awaiting, the answer is written at once, and the task of the conversation is not woken. The answer has
the same bytes as the answer of the normal path.

For many rows, clients send Bind, Describe and Execute of an INSERT for each. The conversation takes the three messages
in one step.

All other messages, and errors, take the normal path; before that, the fast path changes no state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from derive.algebra.types import Datum
from derive.recently_used import RecentlyUsed
from derive.sql.pgwire import messages
from derive.sql.pgwire.messages import bind_of, formats_for
from derive.sql.pgwire.portal import Portal, PreparedStatement
from derive.sql.pgwire.values import Encoder, data_rows, decoder_of
from derive.sql.results import Session, TransactionStatus

_EXECUTE = b"E\0\0\0\x09\0\0\0\0\0"
"""Execute of the unnamed portal for all rows."""
_EXECUTE_AND_SYNC = _EXECUTE + b"S\0\0\0\4"
_DESCRIBE = b"D\0\0\0\6P\0"
_DESCRIBE_EXECUTE_AND_SYNC = _DESCRIBE + _EXECUTE_AND_SYNC
EXECUTIONS = (_DESCRIBE + _EXECUTE, _EXECUTE)
"""Messages that may follow Bind of an INSERT in one step."""
_length = struct.Struct("!i").unpack_from
_PORTAL = 5
"""Offset of the portal's name in `Bind`, after kind and length."""
_MOST_FORMS = 100


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a client's messages for a statement, and of the answer.

    Attributes:
        statement: the statement.
        name: name of the statement.
        head: bytes of `Bind` between its length and its arguments.
        tail: bytes after the arguments.
        behind: number of bytes of the tail after `Bind`.
        decoders: decoders of the arguments.
        beginning: answer before the rows.
        encoders: encoders of the rows.
    """

    statement: PreparedStatement
    name: str
    head: bytes
    tail: bytes
    behind: int
    decoders: tuple[Callable[[bytes], Datum], ...]
    beginning: bytes
    encoders: tuple[Encoder, ...]


@dataclass(frozen=True, slots=True)
class Insertion:
    """The execution of an INSERT of one row.

    Attributes:
        statement: the statement.
        beginning: answer to Bind, and to Describe if it was sent.
        arguments: arguments of the statement.
    """

    statement: PreparedStatement
    beginning: bytes
    arguments: Sequence[Datum]

    @property
    def portal(self) -> Portal:
        """Return the portal that Bind creates."""
        return Portal(self.statement, self.arguments, ())


class FastPath:
    """The fast path of one conversation.

    Args:
        statements: prepared statements of the client, by name.
        session: session of the client.
    """

    def __init__(self, statements: Mapping[str, PreparedStatement], session: Session) -> None:
        self._statements, self._session = statements, session
        self._forms: RecentlyUsed[bytes, _Form] = RecentlyUsed(_MOST_FORMS)  # by statement name; the latest form
        self._insertions: RecentlyUsed[bytes, _Form] = RecentlyUsed(_MOST_FORMS)  # the same, of INSERTs

    def answer(self, data: bytes) -> tuple[PreparedStatement, bytes] | None:
        """Return the statement and the answer outside a transaction; None if the bytes take the normal path.

        Args:
            data: bytes since the last answer.

        Raises:
            SqlError: the lookup fails.
        """
        if not data.startswith(b"B") or data[_PORTAL : _PORTAL + 1] != b"\0":
            return None
        name = data[_PORTAL + 1 : data.find(b"\0", _PORTAL + 1)]
        statement = self._statements.get(name.decode()) if name.isascii() else None
        if statement is None or statement.prepared.columns is None:
            return None
        known = self._read(self._forms, data, name, (_EXECUTE_AND_SYNC, _DESCRIBE_EXECUTE_AND_SYNC))
        if known is None:
            return None
        form, arguments = known
        rows = self._session.look_up(form.statement.prepared, arguments)
        if rows is None:
            return None
        return form.statement, b"".join((form.beginning, data_rows(rows, form.encoders), _ending(len(rows))))

    def insertion(self, data: bytes) -> Insertion | None:
        """Return the execution of an INSERT that needs no wait; None if the messages take the normal path.

        Args:
            data: Bind with one of `EXECUTIONS`.

        Raises:
            SqlError: an argument is invalid.
        """
        if data[_PORTAL : _PORTAL + 1] != b"\0":
            return None
        name = data[_PORTAL + 1 : data.find(b"\0", _PORTAL + 1)]
        statement = self._statements.get(name.decode()) if name.isascii() else None
        if statement is None or not self._session.inserts_at_once(statement.prepared):
            return None
        known = self._read(self._insertions, data, name, EXECUTIONS)
        return None if known is None else Insertion(known[0].statement, known[0].beginning, known[1])

    def _read(
        self, forms: RecentlyUsed[bytes, _Form], data: bytes, name: bytes, rests: Sequence[bytes]
    ) -> tuple[_Form, list[Datum]] | None:
        """Return the form and the arguments of messages; None if they take the normal path."""
        form = forms.get(name)
        arguments = None
        if form is not None and self._statements.get(form.name) is form.statement:
            arguments = _arguments(data, form)
        if arguments is None:
            form = self._form(data, rests)
            if form is None:
                return None
            forms.put(name, form)
            arguments = _arguments(data, form)
        return None if form is None or arguments is None else (form, arguments)

    def _form(self, data: bytes, rests: Sequence[bytes]) -> _Form | None:
        """Return the form of a client's messages, from an example; None if the messages take the normal path."""
        end = 1 + _length(data, 1)[0]
        rest = data[end:]
        if rest not in rests:
            return None
        request = bind_of(data[_PORTAL:end])
        statement = self._statements.get(request.statement)
        if statement is None or len(statement.prepared.parameters) != len(request.arguments):
            return None
        shape = statement.shape(request.result_formats)
        formats = formats_for(request.formats, len(request.arguments), "arguments")
        oids = statement.prepared.parameters
        begin = data.index(b"\0", _PORTAL + 1) + 1 + 2 + 2 * len(request.formats) + 2
        tail = end - 2 - 2 * len(request.result_formats)
        description = shape.description if rest.startswith(_DESCRIBE) else b""
        return _Form(
            statement,
            request.statement,
            data[_PORTAL:begin],
            data[tail:],
            len(rest),
            tuple(decoder_of(oid, form, statement.prepared.zone) for oid, form in zip(oids, formats, strict=True)),
            messages.BIND_COMPLETE + description,
            shape.encoders,
        )


def _arguments(data: bytes, form: _Form) -> list[Datum] | None:
    """Return the arguments of messages in this form; None if the messages have another form, or are invalid."""
    if not (data.startswith(form.head, _PORTAL) and data.endswith(form.tail)):
        return None
    at, end = _PORTAL + len(form.head), len(data) - len(form.tail)
    if _length(data, 1)[0] != len(data) - form.behind - 1:
        return None
    arguments: list[Datum] = []
    for decode in form.decoders:
        if at > end:
            return None
        size = _length(data, at)[0]
        begin = at + 4
        if size >= 0:
            at = begin + size
            arguments.append(decode(data[begin:at]))
        elif size == -1:
            at = begin
            arguments.append(None)
        else:
            return None
    return arguments if at == end else None


@lru_cache
def _ending(rows: int) -> bytes:
    """Return the messages that follow the rows, for a number of rows."""
    return messages.command_complete(f"SELECT {rows}") + messages.ready(TransactionStatus.IDLE.value)
