"""What is wrong with a regular expression."""

from __future__ import annotations

from derive.errors import SqlError


def invalid(what: str) -> SqlError:
    """The error of an expression that is none."""
    return SqlError("2201B", f"invalid regular expression: {what}")


def unsupported(what: str, hint: str) -> SqlError:
    """The error of an expression that PostgreSQL has, and we have not."""
    return SqlError("0A000", what, hint=hint)
