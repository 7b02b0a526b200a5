"""Encodings of a client's texts: the server uses UTF-8, and converts texts of clients, like PostgreSQL.

The tables of Python's codecs are used. They differ from PostgreSQL's tables in a few symbols of SJIS, EUC_JP, BIG5, GBK
and UHC, such as the euro and circled numbers.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass

from derive.errors import SqlError

_CODECS = {
    "UTF8": "utf-8",
    "SQL_ASCII": "utf-8",  # converts nothing; texts are UTF-8 on the server
    **{f"LATIN{number}": f"iso8859-{part}" for number, part in enumerate((1, 2, 3, 4, 9, 10, 13, 14, 15, 16), start=1)},
    **{f"ISO_8859_{part}": f"iso8859-{part}" for part in (5, 6, 7, 8)},
    **{f"WIN{page}": f"cp{page}" for page in (866, 874, 1250, 1251, 1252, 1253, 1254, 1255, 1256, 1257, 1258)},
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
    "SJIS": "cp932",
    "EUC_JP": "euc_jp",
    "EUC_CN": "gb2312",
    "EUC_KR": "euc_kr",
    "BIG5": "cp950",
    "GBK": "cp936",
    "GB18030": "gb18030",
    "UHC": "cp949",
}
"""Python's codec of each encoding, by PostgreSQL's name."""

_ALIASES = {
    "unicode": "UTF8",
    "koi8": "KOI8R",
    "win": "WIN1251",
    "alt": "WIN866",
    "tcvn": "WIN1258",
    "tcvn5712": "WIN1258",
    "vscii": "WIN1258",
    "abc": "WIN1258",
    "mskanji": "SJIS",
    "shiftjis": "SJIS",
    "win932": "SJIS",
    "windows932": "SJIS",
    "win936": "GBK",
    "windows936": "GBK",
    "win949": "UHC",
    "windows949": "UHC",
    "win950": "BIG5",
    "windows950": "BIG5",
    **{f"iso8859{part}": f"LATIN{number}" for number, part in enumerate((1, 2, 3, 4, 9, 10, 13, 14, 15, 16), start=1)},
    **{f"windows{page}": f"WIN{page}" for page in (866, 874, 1250, 1251, 1252, 1253, 1254, 1255, 1256, 1257, 1258)},
}

_MULTIBYTE = frozenset({"SJIS", "EUC_JP", "EUC_CN", "EUC_KR", "BIG5", "GBK", "GB18030", "UHC"})
_COMPOSED = b"\xa4\xd4"
"""The filler character with which EUC_KR composes a syllable without a code of its own."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoding of a client's texts.

    Attributes:
        name: PostgreSQL's name.
        codec: Python's codec.
    """

    name: str
    codec: str

    @property
    def is_utf8(self) -> bool:
        """Return whether the encoding is UTF-8."""
        return self.codec == "utf-8"

    def encode(self, text: str) -> bytes:
        """Return a text as bytes for the client.

        Raises:
            SqlError: the encoding lacks a character (22P05).
        """
        try:
            data = text.encode(self.codec)
        except UnicodeEncodeError as exc:
            raise self._lacks(text[exc.start]) from exc
        if self.name == "EUC_KR" and _COMPOSED in data:
            composed = next((character for character in text if len(character.encode(self.codec)) > 2), None)
            if composed is not None:
                raise self._lacks(composed)
        return data

    def encode_shown(self, text: str) -> bytes:
        """Return a text of a message as bytes for the client, with `?` for characters that the encoding lacks."""
        return text.encode(self.codec, "replace")

    def recode(self, data: bytes) -> bytes:
        """Return a text in UTF-8 as bytes for the client, like `encode`."""
        return data if data.isascii() else self.encode(data.decode())

    def decode(self, data: bytes) -> str:
        """Return a client's text.

        Raises:
            SqlError: the bytes are not in the encoding, or contain a NUL (22021); or UTF-8 lacks a character (22P05).
        """
        try:
            text = data.decode(self.codec)
        except UnicodeDecodeError as exc:
            raise self.invalid(data[exc.start : exc.start + 1]) from exc
        if "\0" in text:
            shown = "UTF8" if self.is_utf8 else self.name
            what = f'invalid byte sequence for encoding "{shown}": 0x00'
            raise SqlError("22021", what, hint="A text must not contain a NUL.")
        return text

    def _lacks(self, character: str) -> SqlError:
        data = " ".join(f"0x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
        what = f'character with byte sequence {data} in encoding "UTF8" has no equivalent in encoding "{self.name}"'
        return SqlError("22P05", what, hint="SET client_encoding = 'UTF8'")

    def invalid(self, data: bytes) -> SqlError:
        """Return the error for bytes that are invalid in this encoding, or have no equivalent in UTF-8."""
        if self.is_utf8:
            what = f'invalid byte sequence for encoding "UTF8": 0x{data.hex()}'
            return SqlError("22021", what, hint="Send texts in UTF-8.")
        if self.name in _MULTIBYTE:
            return SqlError("22021", f'invalid byte sequence for encoding "{self.name}": 0x{data.hex()}')
        what = f'character with byte sequence 0x{data.hex()} in encoding "{self.name}" has no equivalent in encoding'
        return SqlError("22P05", f'{what} "UTF8"')


_ENCODINGS = {re.sub(r"[^a-z0-9]", "", name.lower()): Encoding(name, codec) for name, codec in _CODECS.items()}

UTF8 = _ENCODINGS["utf8"]

NAMES = tuple(_CODECS)
"""PostgreSQL's names of all encodings."""

CLIENT: ContextVar[Encoding] = ContextVar("client encoding", default=UTF8)
"""The encoding of the client that the running task serves."""


def find_encoding(name: str) -> Encoding | None:
    """Return the encoding of a name, in any spelling that drivers use; None for an unknown name."""
    normal = re.sub(r"[^a-z0-9]", "", name.lower())
    alias = _ALIASES.get(normal)
    return _ENCODINGS.get(re.sub(r"[^a-z0-9]", "", alias.lower()) if alias else normal)
