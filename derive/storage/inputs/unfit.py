"""Values of an input that have no JSON form."""

from __future__ import annotations

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Seconds since 1970 of the years 1 to 9999, which RFC 3339 and Python have."""


class UnfitError(Exception):
    """A value, or a type, that has no JSON form; its text says why."""
