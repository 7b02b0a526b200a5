"""Savepoints, as far as drivers need them: they set one before they look types up, and release it behind that.

What is written in a transaction cannot be taken back in part. So a savepoint may always be released, and gone back to
as long as nothing but questions about the catalog came behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from derive.adapter.outcome import Prepared, Result, Session, TransactionStatus
from derive.adapter.pg_catalog.query import CatalogQuery
from derive.compute.algebra.types import Datum
from derive.errors import SqlError

_NAME = r'("(?:[^"]|"")+"|\w+)\s*;?\s*'
_STATEMENTS = {
    "SAVEPOINT": re.compile(rf"\s*SAVEPOINT\s+{_NAME}", re.I),
    "RELEASE": re.compile(rf"\s*RELEASE\s+(?:SAVEPOINT\s+)?{_NAME}", re.I),
    "ROLLBACK": re.compile(rf"\s*ROLLBACK\s+(?:WORK\s+|TRANSACTION\s+)?TO\s+(?:SAVEPOINT\s+)?{_NAME}", re.I),
}


@dataclass(frozen=True, slots=True)
class _Savepoint:
    """A statement about a savepoint."""

    tag: str
    name: str


class SavepointSession:
    """Passes on to another session what is not about savepoints.

    Args:
        session: the other one.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names: list[str] = []
        self._is_touched = False  # by anything that may have had an effect since the first savepoint
        self._is_failed = False  # since the last savepoint, by a question about the catalog

    @property
    def status(self) -> TransactionStatus:
        """Whether a transaction is open, or has failed."""
        return TransactionStatus.FAILED if self._is_failed else self._session.status

    @property
    def parameters(self) -> dict[str, str]:
        """What clients are told of settings."""
        return self._session.parameters

    def split(self, text: str) -> Sequence[str]:
        """The statements of a text."""
        return self._session.split(text)

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        """Understand one statement."""
        for tag, pattern in _STATEMENTS.items():
            if match := pattern.fullmatch(text):
                name = match[1]
                return Prepared(text, (), None, _Savepoint(tag, name[1:-1] if name[0] == '"' else name.lower()))
        if self._is_failed and not _ends(text):
            raise _aborted()
        return await self._session.prepare(text, oids)

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        """Begin to carry out a statement."""
        if self._session.status is TransactionStatus.IDLE:
            self._forget()
        if isinstance(prepared.plan, _Savepoint):
            return self._carry_out(prepared.plan)
        if self._is_failed:
            if not _ends(prepared.text):
                raise _aborted()
            await self._session.fail()
        self._is_failed = False
        self._is_touched |= not isinstance(prepared.plan, CatalogQuery)
        return await self._session.execute(prepared, arguments)

    async def begin_implicit(self) -> None:
        """What follows is one transaction unless one is open."""
        await self._session.begin_implicit()

    async def end_implicit(self) -> None:
        """Commit what is not part of an explicit transaction."""
        await self._session.end_implicit()

    async def fail(self) -> None:
        """A statement has failed."""
        if self._names and not self._is_touched and self._session.status is TransactionStatus.OPEN:
            self._is_failed = True
        else:
            await self._session.fail()

    def cancel(self) -> None:
        """Have the statement at work end with an error; from any thread."""
        self._session.cancel()

    async def close(self) -> None:
        """The client is gone."""
        await self._session.close()

    def _carry_out(self, statement: _Savepoint) -> Result:
        if self._session.status is TransactionStatus.IDLE:
            raise SqlError("25P01", f"{statement.tag} SAVEPOINT can only be used in transaction blocks")
        if self.status is TransactionStatus.FAILED and statement.tag != "ROLLBACK":
            raise _aborted()
        if statement.tag == "SAVEPOINT":
            self._is_touched &= bool(self._names)
            self._names.append(statement.name)
            return Result(lambda _: "SAVEPOINT")
        if statement.name not in self._names:
            raise SqlError("3B001", f'savepoint "{statement.name}" does not exist')
        if statement.tag == "ROLLBACK" and self._is_touched:
            what = "a transaction can be rolled back as a whole only, since statements came behind the savepoint"
            raise SqlError("0A000", what, hint="roll back all of it, and begin again")
        last = len(self._names) - 1 - self._names[::-1].index(statement.name)
        del self._names[last + (statement.tag == "ROLLBACK") :]
        self._is_failed = False
        return Result(lambda _: statement.tag)

    def _forget(self) -> None:
        self._names.clear()
        self._is_touched = self._is_failed = False


def _ends(text: str) -> bool:
    return text.lstrip()[:8].upper().startswith(("COMMIT", "END", "ROLLBACK", "ABORT"))


def _aborted() -> SqlError:
    return SqlError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
