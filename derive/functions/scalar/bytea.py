"""Functions of `bytea`."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.types.formats import bytea_of_text

FUNCTIONS = Functions()

_T, _I, _L, _D = Type.TEXT, Type.INTEGER, Type.BIGINT, Type.BYTEA
_PER_LINE = 76
"""Characters of base64 in a line."""


def encoded(data: bytes, form: str) -> str:
    """Encode bytes as text: `hex`, `base64` or `escape`.

    Raises:
        SqlError: another encoding (22023).
    """
    match form.lower():
        case "hex":
            return data.hex()
        case "base64":
            text = base64.b64encode(data).decode()
            return "\n".join(text[at : at + _PER_LINE] for at in range(0, len(text), _PER_LINE))
        case "escape":
            return "".join("\\\\" if byte == 92 else chr(byte) if 0 < byte < 128 else f"\\{byte:03o}" for byte in data)
    raise SqlError("22023", f'unrecognized encoding: "{form}"')


def decoded(text: str, form: str) -> bytes:
    """Decode a text of one of these encodings.

    Raises:
        SqlError: another encoding, or a malformed text (22023).
    """
    match form.lower():
        case "hex":
            return bytea_of_text(f"\\x{text}")
        case "base64":
            try:
                return base64.b64decode("".join(text.split()), validate=True)
            except (binascii.Error, ValueError) as exc:
                raise SqlError("22023", f"invalid base64 text: {exc}") from exc
        case "escape":
            return bytea_of_text(text if not text.startswith("\\x") else f"\\{text}")
    raise SqlError("22023", f'unrecognized encoding: "{form}"')


def _part(data: bytes, begin: int, count: int | None = None) -> bytes:
    if count is None:
        return data[max(begin - 1, 0) :]
    if count < 0:
        raise SqlError("22011", "negative substring length not allowed")
    return data[max(begin - 1, 0) : max(begin - 1 + count, 0)]


def _byte_at(data: bytes, index: int) -> int:
    if not 0 <= index < len(data):
        raise SqlError("2202E", f"index {index} out of valid range, 0..{len(data) - 1}")
    return data[index]


def _with_byte(data: bytes, index: int, byte: int) -> bytes:
    _byte_at(data, index)
    return data[:index] + bytes([byte & 255]) + data[index + 1 :]


def _text_of(data: bytes, encoding: str) -> str:
    if encoding.lower().replace("-", "").replace("_", "") not in {"utf8", "unicode"}:
        raise SqlError("22023", f'invalid source encoding name "{encoding}"', hint="UTF8 is supported.")
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise SqlError("22021", 'invalid byte sequence for encoding "UTF8"') from exc


def _hash(algorithm: str) -> Callable[[bytes], bytes]:
    return lambda data: hashlib.new(algorithm, data).digest()


def _add() -> None:
    define = FUNCTIONS.define
    define("||", (_D, _D), _D, word="concatenate", can_fail=False)(lambda left, right: left + right)
    for symbol in ("length", "octet_length"):
        define(symbol, (_D,), _I, can_fail=False)(len)
    define("bit_length", (_D,), _I, can_fail=False)(lambda data: 8 * len(data))
    define("encode", (_D, _T), _T)(encoded)
    define("decode", (_T, _T), _D)(decoded)
    define("md5", (_D,), _T, can_fail=False)(lambda data: hashlib.md5(data, usedforsecurity=False).hexdigest())
    for algorithm in ("sha224", "sha256", "sha384", "sha512"):
        define(algorithm, (_D,), _D, can_fail=False)(_hash(algorithm))
    for symbol in ("substr", "substring"):
        define(symbol, (_D, _I), _D, can_fail=False)(_part)
        define(symbol, (_D, _I, _I), _D)(_part)
    define("position", (_D, _D), _I, can_fail=False)(lambda data, sought: data.find(sought) + 1)
    define("get_byte", (_D, _I), _I)(_byte_at)
    define("set_byte", (_D, _I, _I), _D)(_with_byte)
    define("reverse", (_D,), _D, can_fail=False)(lambda data: data[::-1])
    define("convert_from", (_D, _T), _T)(_text_of)
    define("convert_to", (_T, _T), _D)(lambda text, encoding: _text_of(text.encode(), encoding).encode())


_add()
