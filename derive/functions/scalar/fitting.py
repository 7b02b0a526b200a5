"""Fitting values to type modifiers: numbers are rounded, texts cut, or refused if that would lose information."""

from __future__ import annotations

from decimal import Decimal
from functools import partial

from derive.algebra.type_modifier import ModifiedType, TypeModifier, number
from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.types.numeric import decimal_of, numeric_of, rounded

FUNCTIONS = Functions()
"""`fit_…` for storage, and `cut_…` for casts of texts; SQL cannot call them by name."""

_T, _I, _N = Type.TEXT, Type.INTEGER, Type.NUMERIC


def _fit_number(value: Decimal, size: int, scale: int) -> Decimal:
    if value.is_nan():
        return value
    fitted = rounded(value, scale)
    if not fitted.is_finite() or (fitted and fitted.adjusted() >= size - scale):
        what = f"A field with precision {size}, scale {scale}"
        limit = f"10^{size - scale}" if size != scale else "1"
        detail = f"{what} must round to an absolute value less than {limit}."
        if not fitted.is_finite():
            detail = f"{what} cannot hold an infinite value."
        raise SqlError("22003", "numeric field overflow", detail=detail)
    return fitted


def _fit_text(name: ModifiedType, text: str, size: int) -> str:
    if len(text) > size and text[size:].strip(" "):
        raise SqlError("22001", f"value too long for type {name.value}({size})")
    return text[:size].rstrip(" ") if name is ModifiedType.BPCHAR else text[:size]


def fitted(modifier: TypeModifier, datum: Datum) -> Datum:
    """Fit a datum to a column's modifier.

    Raises:
        SqlError: 22001 or 22003, it does not fit.
    """
    if isinstance(datum, bytes) and modifier.name is ModifiedType.NUMERIC:
        return numeric_of(_fit_number(decimal_of(datum), modifier.size, modifier.scale))
    return _fit_text(modifier.name, datum, modifier.size) if isinstance(datum, str) else datum


FUNCTIONS.define("numeric(p,s)", (_N, _I, _I), _N, word="fit_numeric")(_fit_number)
FUNCTIONS.define("varchar(n)", (_T, _I), _T, word="fit_varchar")(partial(_fit_text, ModifiedType.VARCHAR))
FUNCTIONS.define("char(n)", (_T, _I), _T, word="fit_bpchar")(partial(_fit_text, ModifiedType.BPCHAR))
FUNCTIONS.define("varchar(n)", (_T, _I), _T, word="cut_varchar", can_fail=False)(lambda text, size: text[:size])
FUNCTIONS.define("char(n)", (_T, _I), _T, word="cut_bpchar", can_fail=False)(lambda text, size: text[:size].rstrip(" "))
FUNCTIONS.define("text(n)", (_T, _I), _T, word="shown", can_fail=False)(
    lambda text, scale: number(scale).shown(text) if scale else text
)

FUNCTIONS.native("text()", (_T,), _T, lambda arguments, _: arguments[0], word="plain_text")
FUNCTIONS.define("text()", (_T,), _T, word="vector_text", can_fail=False)(
    lambda text: text.strip("{}").replace(",", " ")
)


def fitting_function(modifier: TypeModifier, *, is_cast: bool) -> str:
    """Return the function that fits a value to a modifier; it takes the value, then the modifier's numbers."""
    if modifier.name is ModifiedType.NUMERIC:
        return "fit_numeric_numeric_integer_integer"
    return f"{'cut' if is_cast else 'fit'}_{modifier.name.name.lower()}_text_integer"
