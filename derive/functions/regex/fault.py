"""Errors of regular expressions."""

from __future__ import annotations

from derive.errors import SqlError


def invalid(what: str) -> SqlError:
    """Return the error of an invalid expression."""
    return SqlError("2201B", f"invalid regular expression: {what}")


def unsupported(what: str, hint: str) -> SqlError:
    """Return the error of an expression that PostgreSQL supports and this runtime does not."""
    return SqlError("0A000", what, hint=hint)
