"""Blocks of SQL, split into statements and understood before the first document comes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import apsw
import apsw.ext

from derive.errors import LambdaError
from derive.position import Script

_COMMENT = re.compile(r"--[^\n]*|/\*.*?(\*/|$)", re.DOTALL)
_FORBIDDEN = re.compile(
    r"(BEGIN|COMMIT|END|ROLLBACK(?!\s+(TRANSACTION\s+)?TO\b)|ATTACH|DETACH|PRAGMA|VACUUM)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a block.

    Attributes:
        text: the SQL.
        offset: where it begins in the block's text.
        parameters: names of its parameters in binding order, without `$`.
        columns: names of its result columns; none if it returns no rows.
    """

    text: str
    offset: int
    parameters: tuple[str, ...]
    columns: tuple[str, ...]


def split(text: str) -> Iterator[tuple[str, int]]:
    """The statements of a block with their offsets; comments alone are none, and the last may lack its semicolon."""
    begin = 0
    for found in re.finditer(";", text):
        end = found.end()
        if apsw.complete(text[begin:end]):
            if not _is_blank(text[begin : end - 1]):
                yield text[begin:end], begin
            begin = end
    if not _is_blank(text[begin:]):
        yield text[begin:], begin


def _is_blank(text: str) -> bool:
    return not _COMMENT.sub(" ", text).strip(" \t\r\n;")


def prepare(db: apsw.Connection, script: Script, what: str) -> list[Statement]:
    """Prepare every statement of a block, running none.

    Args:
        db: has the tables the block refers to.
        script: the block.
        what: names it in errors.

    Raises:
        LambdaError: a statement does not prepare, or may not be used.
    """
    if "\0" in script.text:
        raise LambdaError(f"{what} contains a NUL character", position=script.position)
    return [prepare_one(db, script, text, offset, what) for text, offset in split(script.text)]


def prepare_one(db: apsw.Connection, script: Script, text: str, offset: int, what: str) -> Statement:
    """Prepare one statement of a block."""
    stripped = _COMMENT.sub(lambda found: " " * len(found[0]), text)
    lead = len(stripped) - len(stripped.lstrip())
    forbidden = _FORBIDDEN.match(stripped, lead)
    if forbidden:
        raise LambdaError(
            f"{what} may not use {forbidden[1].upper()}: the runtime owns the transaction and the database",
            position=script.locate(offset + lead, len(forbidden[1])),
        )
    try:
        info = apsw.ext.query_info(db, text)
    except apsw.Error as exc:
        place = getattr(exc, "error_offset", -1)
        # SQLite counts bytes of UTF-8.
        character = len(text.encode()[:place].decode(errors="ignore")) if place >= 0 else lead
        word = re.match(r"[\w$]+|.", text[character:], re.DOTALL)
        position = script.locate(offset + character, len(word[0]) if word else 1)
        raise LambdaError(f"{what} does not prepare: {exc}", position=position) from exc
    columns = tuple(each[0] for each in info.description)
    unnamed = [place for place, each in enumerate(info.bindings_names, 1) if not each]
    if unnamed:
        raise LambdaError(
            f"{what} has a parameter without a name", position=script.locate(offset + lead), hint="write $field"
        )
    return Statement(text, offset, tuple(str(each) for each in info.bindings_names), columns)
