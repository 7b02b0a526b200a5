"""The conditions of TABLESAMPLE."""

from __future__ import annotations

from hashlib import blake2b

from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.function import Function, Functions
from derive.functions.types.numbers import float_of

FUNCTIONS = Functions()
SHARE = "sample_share"
"""The function from a percentage to a number from 0 to 1."""
IS_SAMPLED = "is_sampled"
"""The function of a share, a seed, and the values of a row: whether the row is in the sample."""

_NUMBERS = 1 << 32


def _share(percentage: float | str | None) -> float:
    if percentage is None:
        raise SqlError("2202H", "TABLESAMPLE parameter cannot be null")
    number = float_of(percentage)
    if not 0 <= number <= 100:
        raise SqlError("2202H", "sample percentage must be between 0 and 100")
    return number / 100


def _is_sampled(share: Datum, seed: Datum, *row: Datum) -> int:
    if seed is None:
        raise SqlError("2202G", "TABLESAMPLE REPEATABLE parameter cannot be null")
    assert isinstance(share, float)
    digest = blake2b(repr((seed, row)).encode(), digest_size=4).digest()
    return int(int.from_bytes(digest, "big") < share * _NUMBERS)


FUNCTIONS.add(Function(SHARE, f"{SHARE}[]", (Type.DOUBLE,), Type.DOUBLE, _share))
_TYPES = (Type.DOUBLE, Type.DOUBLE, None)
FUNCTIONS.add(Function(IS_SAMPLED, f"{IS_SAMPLED}[]", _TYPES, Type.BOOLEAN, _is_sampled, is_variadic=True))
