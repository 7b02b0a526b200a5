"""UUIDs: sixteen bytes, which sort as in PostgreSQL."""

from __future__ import annotations

import re

from derive.errors import SqlError

_SIZE = 16
_UUID = re.compile(r"\{(?P<braced>(?:[0-9a-f]{4}-?){7}[0-9a-f]{4})\}|(?P<plain>(?:[0-9a-f]{4}-?){7}[0-9a-f]{4})", re.I)


def uuid_of_text(text: str) -> bytes:
    """Return the UUID of a text: hexadecimal digits, with hyphens after any four of them, perhaps in braces.

    Raises:
        SqlError: 22P02, the text is not a UUID.
    """
    match = _UUID.fullmatch(text)
    if match is None:
        raise SqlError("22P02", f'invalid input syntax for type uuid: "{text}"')
    return bytes.fromhex((match["braced"] or match["plain"]).replace("-", ""))


def text_of_uuid(datum: bytes) -> str:
    """Return a UUID as PostgreSQL shows it."""
    digits = datum.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def uuid_of_binary(data: bytes) -> bytes:
    """Return the datum of a UUID in binary representation.

    Raises:
        SqlError: 22P03, the bytes are invalid.
    """
    if len(data) != _SIZE:
        raise SqlError("22P03", "incorrect binary data format for type uuid")
    return bytes(data)
