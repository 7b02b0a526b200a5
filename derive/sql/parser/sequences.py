"""Syntax and parser of sequences, and of identity columns, which count like sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.object_definitions import CreateSequence
from derive.sql.parser.tokens import TokenKind, TokenReader
from derive.sql.parser.type_names import parse_type


class Identity(Enum):
    """How a column gets numbers from a counter; the value is PostgreSQL's letter (`attidentity`), or `s` for serial."""

    ALWAYS = "a"
    BY_DEFAULT = "d"
    SERIAL = "s"


@dataclass(frozen=True, slots=True)
class AlterSequence:
    """`ALTER SEQUENCE [IF EXISTS] name options`.

    Attributes:
        name: name of the sequence.
        if_exists: whether the sequence may be missing.
        restarts: whether the options contain RESTART.
        value: number of RESTART WITH; None for the first number of the sequence.
        type: PostgreSQL's short name of the type of AS.
        owner: parts of the name of the column of OWNED BY; the one part `none` for no column; empty without OWNED BY.
    """

    name: QualifiedName
    if_exists: bool = False
    restarts: bool = False
    value: int | None = None
    type: str | None = None
    owner: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AddIdentity:
    """`ALTER [COLUMN] name ADD GENERATED … AS IDENTITY [(options)]`."""

    name: str
    offset: int
    identity: Identity
    numbering: CreateSequence | None


@dataclass(frozen=True, slots=True)
class SetIdentity:
    """`ALTER [COLUMN] name SET GENERATED …` and `RESTART [WITH value]`.

    Attributes:
        name: name of the column.
        offset: offset in the statement.
        identity: the new kind; None for the present one.
        restarts: whether the numbers begin again.
        value: their next number; None for the first one.
    """

    name: str
    offset: int
    identity: Identity | None = None
    restarts: bool = False
    value: int | None = None


@dataclass(frozen=True, slots=True)
class DropIdentity:
    """`ALTER [COLUMN] name DROP IDENTITY [IF EXISTS]`."""

    name: str
    offset: int
    if_exists: bool


def _signed(reader: TokenReader) -> int:
    """Read an integer with or without a sign."""
    sign = -1 if reader.accept_symbol("-") else 1
    return sign * reader.integer()


def parse_sequence(reader: TokenReader, if_not_exists: bool) -> CreateSequence:
    """Read name and options of CREATE SEQUENCE."""
    sequence = CreateSequence(reader.qualified_name(), if_not_exists)
    while not reader.is_end():
        sequence = _with_option(reader, sequence)
    return sequence


def parse_numbering(reader: TokenReader) -> CreateSequence | None:
    """Read the options of an identity column in parentheses; return None if there are no parentheses.

    The name of the sequence is empty without the option SEQUENCE NAME.
    """
    offset = reader.offset
    if not reader.accept_symbol("("):
        return None
    sequence = CreateSequence(QualifiedName(None, "", offset))
    while not reader.accept_symbol(")"):
        if reader.accept_words("sequence", "name"):
            sequence = replace(sequence, name=reader.qualified_name())
        else:
            sequence = _with_option(reader, sequence)
    return sequence


def _with_option(reader: TokenReader, sequence: CreateSequence) -> CreateSequence:
    """Read one option of a sequence."""
    where = reader.offset
    if reader.accept_word("as"):
        sequence = replace(sequence, type=parse_type(reader).name)
    elif reader.accept_word("increment"):
        reader.accept_word("by")
        sequence = replace(sequence, increment=_signed(reader))
    elif reader.accept_word("start"):
        reader.accept_word("with")
        sequence = replace(sequence, start=_signed(reader))
    elif reader.accept_word("minvalue"):
        sequence = replace(sequence, least=_signed(reader))
    elif reader.accept_word("maxvalue"):
        sequence = replace(sequence, most=_signed(reader))
    elif reader.accept_word("cycle"):
        hint = "Omit CYCLE; setval begins again."
        raise SqlError("0A000", "CYCLE of a sequence is not supported", offset=where, hint=hint)
    elif reader.accept_words("owned", "by"):
        sequence = replace(sequence, owner=_column(reader))
    elif reader.accept_word("cache"):
        _signed(reader)
    else:
        reader.expect_word("no")
        reader.expect_word("minvalue", "maxvalue", "cycle")
    return sequence


def _column(reader: TokenReader) -> tuple[str, ...]:
    """Read the name of a column behind OWNED BY, or NONE."""
    parts = [reader.any_name()]
    while reader.accept_symbol("."):
        parts.append(reader.any_name())
    return tuple(parts)


def parse_altered_sequence(reader: TokenReader, name: QualifiedName, if_exists: bool) -> AlterSequence:
    """Read the options of ALTER SEQUENCE."""
    altered = AlterSequence(name, if_exists)
    while not reader.is_end():
        if reader.accept_words("owned", "by"):
            altered = replace(altered, owner=_column(reader))
        elif reader.accept_word("as"):
            altered = replace(altered, type=parse_type(reader).name)
        else:
            altered = replace(altered, restarts=True, value=_restart(reader))
    return altered


def _restart(reader: TokenReader) -> int | None:
    reader.expect_word("restart")
    has_value = reader.accept_word("with") or reader.token.kind is TokenKind.NUMBER or reader.is_symbol("-")
    return _signed(reader) if has_value else None


def parse_identity(reader: TokenReader) -> Identity:
    """Read `ALWAYS` or `BY DEFAULT` behind GENERATED."""
    if reader.accept_word("always"):
        return Identity.ALWAYS
    reader.expect_words("by", "default")
    return Identity.BY_DEFAULT


def parse_identity_change(reader: TokenReader, name: str, offset: int) -> AddIdentity | SetIdentity | DropIdentity:
    """Read a change of an identity, from ADD, SET, RESTART or DROP on.

    Args:
        reader: tokens behind the name of the column.
        name: name of the column.
        offset: its offset in the statement.
    """
    if reader.accept_words("drop", "identity"):
        return DropIdentity(name, offset, reader.accept_words("if", "exists"))
    if reader.accept_words("add", "generated"):
        identity = parse_identity(reader)
        reader.expect_words("as", "identity")
        return AddIdentity(name, offset, identity, parse_numbering(reader))
    changed = SetIdentity(name, offset)
    while reader.is_word("restart") or reader.is_words("set", "generated"):
        if reader.accept_words("set", "generated"):
            changed = replace(changed, identity=parse_identity(reader))
        else:
            changed = replace(changed, restarts=True, value=_restart(reader))
    return changed


def begins_identity_change(reader: TokenReader) -> bool:
    """Return whether a change of an identity follows."""
    pairs = (("add", "generated"), ("set", "generated"), ("drop", "identity"))
    return reader.is_word("restart") or any(reader.is_words(*pair) for pair in pairs)
