"""The one exchange that is answered at once, as its bytes come in: a prepared look-up.

A client binds arguments to a statement that it has prepared, has it carried out and says `Sync`, all in one go; most
that look something up again and again do. Where the session has the rows without waiting for anything, the answer is
written at once, and the conversation's task sleeps on. It is what the conversation would have answered, byte for byte.
Whatever is otherwise, and every error, is left to the conversation, which finds everything as it was.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from derive.algebra.types import Datum
from derive.recently_used import RecentlyUsed
from derive.sql.outcome import Session, TransactionStatus
from derive.sql.pgwire import messages
from derive.sql.pgwire.portal import PreparedStatement
from derive.sql.pgwire.requests import bind_of, formats_for
from derive.sql.pgwire.values import Encoder, data_rows, decoder_of

_EXECUTE_AND_SYNC = b"E\0\0\0\x09\0\0\0\0\0S\0\0\0\4"
"""Of the portal without a name, all its rows."""
_DESCRIBE_EXECUTE_AND_SYNC = b"D\0\0\0\6P\0" + _EXECUTE_AND_SYNC
_length = struct.Struct("!i").unpack_from
_PORTAL = 5
"""Where the name of the portal begins in `Bind`, behind its kind and its length."""
_MOST_FORMS = 100


@dataclass(frozen=True, slots=True)
class _Form:
    """How a client sends the arguments of a statement, and wants the answer.

    Attributes:
        statement: that is looked up.
        name: of the statement.
        head: of `Bind`, all between its length and its arguments.
        tail: all behind the arguments.
        behind: how many bytes of the tail are behind `Bind`.
        decoders: of the arguments.
        beginning: of the answer, up to its rows.
        encoders: of the rows.
    """

    statement: PreparedStatement
    name: str
    head: bytes
    tail: bytes
    behind: int
    decoders: tuple[Callable[[bytes], Datum], ...]
    beginning: bytes
    encoders: tuple[Encoder, ...]


class PromptExchange:
    """Answers of one conversation.

    Args:
        statements: that the client has prepared, by name.
        session: in which they are looked up.
    """

    def __init__(self, statements: Mapping[str, PreparedStatement], session: Session) -> None:
        self._statements, self._session = statements, session
        self._forms: RecentlyUsed[bytes, _Form] = RecentlyUsed(
            _MOST_FORMS
        )  # by the statement's name; as it was sent last

    def answer(self, data: bytes) -> tuple[PreparedStatement, bytes] | None:
        """The statement that is looked up, and the answer of the server, in no transaction; None if it is no such.

        Args:
            data: all that has come in since the last answer.

        Raises:
            SqlError: there is an error instead of the answer.
        """
        if not data.startswith(b"B") or data[_PORTAL : _PORTAL + 1] != b"\0":
            return None
        name = data[_PORTAL + 1 : data.find(b"\0", _PORTAL + 1)]
        form = self._forms.get(name)
        arguments = None
        if form is not None and self._statements.get(form.name) is form.statement:
            arguments = _arguments(data, form)
        if arguments is None:
            form = self._form(data)
            if form is None:
                return None
            self._forms.put(name, form)
            arguments = _arguments(data, form)
        if form is None or arguments is None:
            return None
        rows = self._session.look_up(form.statement.prepared, arguments)
        if rows is None:
            return None
        return form.statement, b"".join((form.beginning, data_rows(rows, form.encoders), _ending(len(rows))))

    def _form(self, data: bytes) -> _Form | None:
        """How a client sends a statement, by an example that is well formed; None if this is not answered at once."""
        end = 1 + _length(data, 1)[0]
        rest = data[end:]
        if rest not in (_EXECUTE_AND_SYNC, _DESCRIBE_EXECUTE_AND_SYNC):
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
        description = b"" if rest == _EXECUTE_AND_SYNC else shape.description
        return _Form(
            statement,
            request.statement,
            data[_PORTAL:begin],
            data[tail:],
            len(rest),
            tuple(decoder_of(oid, form) for oid, form in zip(oids, formats, strict=True)),
            messages.BIND_COMPLETE + description,
            shape.encoders,
        )


def _arguments(data: bytes, form: _Form) -> list[Datum] | None:
    """The arguments of what is sent in a form; None if it is in another one, or malformed."""
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
    """What follows so many rows."""
    return messages.command_complete(f"SELECT {rows}") + messages.ready(TransactionStatus.IDLE.value)
