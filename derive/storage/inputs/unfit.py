"""Input values without a JSON form."""

from __future__ import annotations

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Seconds since 1970 of the beginning of year 1 and the end of year 9999, the range of RFC 3339 and Python."""


class UnfitError(Exception):
    """A value or type without a JSON form; the text of the error gives the reason."""
