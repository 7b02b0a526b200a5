"""Functions of `bytea`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.types.encodings import Encoding, find_encoding
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


_BITS = 8


def _bit_place(data: bytes, index: int) -> tuple[int, int]:
    """Return the byte of a bit, and the bit's place in the byte from its least bit on."""
    if not 0 <= index < _BITS * len(data):
        raise SqlError("2202E", f"index {index} out of valid range, 0..{_BITS * len(data) - 1}")
    return divmod(index, _BITS)


def _bit_at(data: bytes, index: int) -> int:
    byte, place = _bit_place(data, index)
    return data[byte] >> place & 1


def _with_bit(data: bytes, index: int, bit: int) -> bytes:
    byte, place = _bit_place(data, index)
    if bit not in {0, 1}:
        raise SqlError("22023", "new bit must be 0 or 1")
    return _with_byte(data, byte, data[byte] & ~(1 << place) | bit << place)


def _overlaid(data: bytes, new: bytes, begin: int, count: int | None = None) -> bytes:
    if begin <= 0:
        raise SqlError("22011", "negative substring length not allowed")
    end = begin + (len(new) if count is None else count)
    if not -1 << 31 <= end < 1 << 31:
        raise SqlError("22003", "integer out of range")
    return data[: begin - 1] + new + data[max(end - 1, 0) :]


def _trimmed_left(data: bytes, trimmed: bytes) -> bytes:
    return data.lstrip(trimmed)


def _trimmed_right(data: bytes, trimmed: bytes) -> bytes:
    return data.rstrip(trimmed)


def _trimmed(data: bytes, trimmed: bytes) -> bytes:
    return data.strip(trimmed)


_CASTAGNOLI = 0x82F63B78


def _crc32c(data: bytes) -> int:
    """Return the CRC-32C, by the polynomial of Castagnoli."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(_BITS):
            remainder = remainder >> 1 ^ (_CASTAGNOLI if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def _encoding(name: str, role: str) -> Encoding:
    encoding = find_encoding(name)
    if encoding is None:
        raise SqlError("22023", f'invalid {role} encoding name "{name}"')
    return encoding


def _text_of(data: bytes, encoding: str) -> str:
    return _encoding(encoding, "source").decode(data)


def _bytes_of(text: str, encoding: str) -> bytes:
    return _encoding(encoding, "destination").encode(text)


def _converted(data: bytes, source: str, destination: str) -> bytes:
    of_source, of_destination = _encoding(source, "source"), _encoding(destination, "destination")
    return of_destination.encode(of_source.decode(data))


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
    define("get_bit", (_D, _L), _I)(_bit_at)
    define("set_bit", (_D, _L, _I), _D)(_with_bit)
    define("bit_count", (_D,), _L, can_fail=False)(lambda data: int.from_bytes(data, "big").bit_count())
    define("overlay", (_D, _D, _I), _D)(_overlaid)
    define("overlay", (_D, _D, _I, _I), _D)(_overlaid)
    for symbol, trim in (("btrim", _trimmed), ("ltrim", _trimmed_left), ("rtrim", _trimmed_right)):
        define(symbol, (_D, _D), _D, can_fail=False)(trim)
    define("crc32", (_D,), _L, can_fail=False)(zlib.crc32)
    define("crc32c", (_D,), _L, can_fail=False)(_crc32c)
    define("reverse", (_D,), _D, can_fail=False)(lambda data: data[::-1])
    define("convert_from", (_D, _T), _T)(_text_of)
    define("convert_to", (_T, _T), _D)(_bytes_of)
    define("convert", (_D, _T, _T), _D)(_converted)
    define("length", (_D, _T), _I)(lambda data, encoding: len(_encoding(encoding, "source").decode(data)))


_add()
