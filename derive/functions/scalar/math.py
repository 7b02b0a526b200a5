"""Functions and operators of numbers: integer overflow is an error, and doubles follow PostgreSQL."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Any

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions, double_form, integer_form, sign_form, word_of
from derive.functions.types.formats import BITS
from derive.functions.types.numbers import (
    EXACT,
    divided,
    exponential,
    logarithm,
    logarithm_of_base,
    power,
    quotient,
    scale_of,
    square_root,
)
from derive.functions.types.single import single_of_double

FUNCTIONS = Functions()

INTEGERS = (Type.SMALLINT, Type.INTEGER, Type.BIGINT)
WORDS_OF_OPERATORS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "modulo"}


def in_range(kind: Type, number: int) -> int:
    """Return the number after a check that an integer type can hold it.

    Raises:
        SqlError: the number is out of range (22003).
    """
    if not -1 << BITS[kind] - 1 <= number < 1 << BITS[kind] - 1:
        raise SqlError("22003", f"{kind.value} out of range")
    return number


def truncated_quotient(left: int, right: int) -> int:
    """Return a quotient of integers, truncated towards zero.

    Raises:
        SqlError: division by zero (22012).
    """
    if not right:
        raise SqlError("22012", "division by zero")
    units = abs(left) // abs(right)
    return units if (left < 0) == (right < 0) else -units


def remainder(left: int, right: int) -> int:
    """Return the remainder of the truncated quotient; it has the sign of the dividend.

    Raises:
        SqlError: division by zero (22012).
    """
    return left - truncated_quotient(left, right) * right


_INTEGER_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": truncated_quotient,
    "%": remainder,
}


def checked_double(number: float, *operands: float) -> float:
    """Return a result after a check: it may be infinite only if an operand is infinite.

    Raises:
        SqlError: the result is too large (22003).
    """
    if math.isinf(number) and not any(map(math.isinf, operands)):
        raise SqlError("22003", "value out of range: overflow")
    return number


def _product(left: float, right: float) -> float:
    number = checked_double(left * right, left, right)
    if number == 0 and left and right:
        raise SqlError("22003", "value out of range: underflow")
    return number


def _double_quotient(left: float, right: float) -> float:
    if not right and not math.isnan(left):
        raise SqlError("22012", "division by zero")
    number = math.nan if not right else checked_double(left / right, left)
    if number == 0 and left and not math.isinf(right):
        raise SqlError("22003", "value out of range: underflow")
    return number


_DOUBLE_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: checked_double(left + right, left, right),
    "-": lambda left, right: checked_double(left - right, left, right),
    "*": _product,
    "/": _double_quotient,
}


def _in_single_precision(operate: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """Wrap an operation on doubles to round its result to single precision, which rounds only once in effect."""
    return lambda left, right: single_of_double(operate(left, right))


def _numeric_of_special(operate: Callable[[Decimal, Decimal], Decimal]) -> Callable[[Decimal, Decimal], Decimal]:
    """Wrap an operation to return NaN for undefined results, such as infinity minus infinity."""

    def on_any(left: Decimal, right: Decimal) -> Decimal:
        if left.is_finite() and right.is_finite():
            return operate(left, right)
        if left.is_nan() or right.is_nan():
            return Decimal("NaN")
        try:
            return operate(left, right)
        except ArithmeticError:
            return Decimal("NaN")

    return on_any


def numeric_remainder(left: Decimal, right: Decimal) -> Decimal:
    """Return the remainder of the truncated quotient.

    Raises:
        SqlError: division by zero (22012).
    """
    if left.is_nan() or right.is_nan() or (left.is_infinite() and right):
        return Decimal("NaN")
    if not right:
        raise SqlError("22012", "division by zero")
    return left if right.is_infinite() else EXACT.remainder(left, right)


_NUMERIC_OPERATORS: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": _numeric_of_special(EXACT.add),
    "-": _numeric_of_special(EXACT.subtract),
    "*": _numeric_of_special(EXACT.multiply),
    "/": quotient,
    "%": numeric_remainder,
}


def _integer_function(kind: Type, operate: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda left, right: in_range(kind, operate(left, right))


def _add_binary() -> None:
    for kind in INTEGERS:
        for symbol, operate in _INTEGER_OPERATORS.items():
            word = WORDS_OF_OPERATORS[symbol]
            form = integer_form(kind, symbol, f"{word}_{word_of(kind)}")
            FUNCTIONS.define(symbol, (kind, kind), kind, word=word, sql=form)(_integer_function(kind, operate))
    for symbol, operate_doubles in _DOUBLE_OPERATORS.items():
        both = (Type.DOUBLE, Type.DOUBLE)
        word = WORDS_OF_OPERATORS[symbol]
        form = double_form(symbol, f"{word}_double")
        FUNCTIONS.define(symbol, both, Type.DOUBLE, word=word, sql=form)(operate_doubles)
        both = (Type.REAL, Type.REAL)
        FUNCTIONS.define(symbol, both, Type.REAL, word=word)(_in_single_precision(operate_doubles))
    for symbol, operate_decimals in _NUMERIC_OPERATORS.items():
        both = (Type.NUMERIC, Type.NUMERIC)
        FUNCTIONS.define(symbol, both, Type.NUMERIC, word=WORDS_OF_OPERATORS[symbol])(operate_decimals)


def _add_mixed_integers() -> None:
    """Add operators for integers of different sizes, as PostgreSQL has them; the result has the greater size."""
    for index, narrow in enumerate(INTEGERS):
        for wide in INTEGERS[index + 1 :]:
            for kinds in ((narrow, wide), (wide, narrow)):
                for symbol, operate in _INTEGER_OPERATORS.items():
                    if symbol == "%":
                        continue
                    word = WORDS_OF_OPERATORS[symbol]
                    form = integer_form(wide, symbol, "_".join((word, *map(word_of, kinds))))
                    FUNCTIONS.define(symbol, kinds, wide, word=word, sql=form)(_integer_function(wide, operate))


def _add_unary() -> None:
    signs: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "-": ("negate", lambda number: -number),
        "+": ("plus", lambda number: number),
        "abs": ("abs", abs),
        "@": ("absolute", abs),
    }
    for symbol, (word, operate) in signs.items():
        for kind in INTEGERS:
            operator = {"-": "-", "+": "+"}.get(symbol, "abs")
            form = sign_form(kind, operator, f"{word}_{word_of(kind)}")
            FUNCTIONS.define(symbol, (kind,), kind, word=word, sql=form)(_integer_sign(kind, operate))
        FUNCTIONS.define(symbol, (Type.DOUBLE,), Type.DOUBLE, word=word, can_fail=False)(operate)
        FUNCTIONS.define(symbol, (Type.REAL,), Type.REAL, word=word, can_fail=False)(operate)
        decimal_operate = {"negate": Decimal.copy_negate, "plus": operate}.get(word, Decimal.copy_abs)
        FUNCTIONS.define(symbol, (Type.NUMERIC,), Type.NUMERIC, word=word, can_fail=False)(decimal_operate)


def _integer_sign(kind: Type, operate: Callable[[int], int]) -> Callable[[int], int]:
    return lambda number: in_range(kind, operate(number))


_add_binary()
_add_mixed_integers()
_add_unary()


_I, _L, _D, _N = Type.INTEGER, Type.BIGINT, Type.DOUBLE, Type.NUMERIC


def _rounding(mode: str) -> Callable[[Decimal, int], Decimal]:
    def round_to(number: Decimal, scale: int = 0) -> Decimal:
        if not number.is_finite() or scale >= scale_of(number):
            return number
        scale = max(scale, -200_000)
        if number.adjusted() < -scale - 1:
            # The number is less than a tenth of the unit.
            away = (mode == ROUND_CEILING and number > 0) or (mode == ROUND_FLOOR and number < 0)
            return Decimal(1).copy_sign(number).scaleb(-scale, EXACT) if away else Decimal(0)
        return number.quantize(Decimal(1).scaleb(-scale, EXACT), rounding=mode, context=EXACT)

    return round_to


def _half_even(number: float) -> float:
    return float(round(number)) if math.isfinite(number) else number


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda number: float(function(number)) if math.isfinite(number) else number


def _sign(number: float | Decimal) -> int:
    return int(number > 0) - int(number < 0)


def _double_sign(number: float) -> float:
    return float(_sign(number))


def _numeric_sign(number: Decimal) -> Decimal:
    return number if number.is_nan() else Decimal(_sign(number))


def _add_roundings() -> None:
    define = FUNCTIONS.define
    for symbol, mode, of_double in (
        ("round", ROUND_HALF_UP, _half_even),
        ("trunc", ROUND_DOWN, _whole(math.trunc)),
        ("ceil", ROUND_CEILING, _whole(math.ceil)),
        ("ceiling", ROUND_CEILING, _whole(math.ceil)),
        ("floor", ROUND_FLOOR, _whole(math.floor)),
    ):
        define(symbol, (_D,), _D, can_fail=False)(of_double)
        define(symbol, (_N,), _N)(_rounding(mode))
        if symbol in {"round", "trunc"}:
            define(symbol, (_N, _I), _N)(_rounding(mode))
    define("sign", (_D,), _D, can_fail=False)(_double_sign)
    define("sign", (_N,), _N, can_fail=False)(_numeric_sign)
    define("scale", (_N,), _I, can_fail=False)(lambda number: scale_of(number) if number.is_finite() else None)
    define("min_scale", (_N,), _I, can_fail=False)(lambda number: scale_of(number) if number.is_finite() else None)
    define("trim_scale", (_N,), _N, can_fail=False)(lambda number: number)


def _gcd(kind: Type) -> Callable[[int, int], int]:
    return lambda left, right: in_range(kind, math.gcd(left, right))


def _lcm(kind: Type) -> Callable[[int, int], int]:
    return lambda left, right: in_range(kind, math.lcm(left, right))


def _remainder(kind: Type) -> Callable[[int, int], int]:
    return lambda left, right: in_range(kind, remainder(left, right))


def _numeric_quotient(left: Decimal, right: Decimal) -> Decimal:
    if left.is_nan() or right.is_nan():
        return Decimal("NaN")
    if not right:
        raise SqlError("22012", "division by zero")
    if left.is_infinite():
        return Decimal("NaN") if right.is_infinite() else left.copy_sign(Decimal(_sign(left) * _sign(right)))
    if right.is_infinite():
        return Decimal(0)
    cut = EXACT.subtract(left, numeric_remainder(left, right))
    return divided(cut, right, 0)


def _numeric_divisor(left: Decimal, right: Decimal) -> Decimal:
    if not (left.is_finite() and right.is_finite()):
        return Decimal("NaN")
    scale = max(scale_of(left), scale_of(right))
    units = math.gcd(int(left.scaleb(scale, EXACT)), int(right.scaleb(scale, EXACT)))
    return Decimal(units).scaleb(-scale, EXACT)


def _numeric_multiple(left: Decimal, right: Decimal) -> Decimal:
    if not (left.is_finite() and right.is_finite()):
        return Decimal("NaN")
    scale = max(scale_of(left), scale_of(right))
    units = math.lcm(int(left.scaleb(scale, EXACT)), int(right.scaleb(scale, EXACT)))
    return Decimal(units).scaleb(-scale, EXACT)


def _factorial(number: int) -> Decimal:
    if number < 0:
        raise SqlError("22003", "factorial of a negative number is undefined")
    if number > 32_177:
        raise SqlError("22003", "value overflows numeric format")
    return Decimal(math.factorial(number))


def _add_divisions() -> None:
    define = FUNCTIONS.define
    for kind in INTEGERS:
        define("mod", (kind, kind), kind)(_remainder(kind))
    for kind in (_I, _L):
        define("gcd", (kind, kind), kind)(_gcd(kind))
        define("lcm", (kind, kind), kind)(_lcm(kind))
    define("mod", (_N, _N), _N)(numeric_remainder)
    define("div", (_N, _N), _N)(_numeric_quotient)
    define("gcd", (_N, _N), _N)(_numeric_divisor)
    define("lcm", (_N, _N), _N)(_numeric_multiple)
    define("factorial", (_L,), _N)(_factorial)


def _shifted(kind: Type, *, is_left: bool) -> Callable[[int, int], int]:
    """Return a shift as processors do it: by the count modulo the size, within the bits of the type."""
    bits = BITS[kind]
    counted = max(bits, 32)

    def shift(number: int, count: int) -> int:
        count %= counted
        number = number << count if is_left else number >> count
        number &= (1 << bits) - 1
        return number - (1 << bits) if number >> bits - 1 else number

    return shift


def _add_bits() -> None:
    operations: dict[str, tuple[str, Callable[[int, int], int]]] = {
        "&": ("bit_and", lambda left, right: left & right),
        "|": ("bit_or", lambda left, right: left | right),
        "#": ("bit_xor", lambda left, right: left ^ right),
    }
    for kind in INTEGERS:
        for symbol, (word, operate) in operations.items():
            FUNCTIONS.define(symbol, (kind, kind), kind, word=word, can_fail=False)(operate)
        FUNCTIONS.define("~", (kind,), kind, word="bit_not", can_fail=False)(lambda number: ~number)
        for symbol, word, is_left in (("<<", "shift_left", True), (">>", "shift_right", False)):
            shift = _shifted(kind, is_left=is_left)
            FUNCTIONS.define(symbol, (kind, _I), kind, word=word, can_fail=False)(shift)


def _guarded(function: Callable[..., float]) -> Callable[..., float]:
    """Wrap a Python function to handle non-finite and out-of-domain arguments as PostgreSQL does."""

    def guarded(*numbers: float) -> float:
        if any(map(math.isnan, numbers)):
            return math.nan
        try:
            return function(*numbers)
        except ValueError as exc:
            raise SqlError("22003", "input is out of range") from exc
        except OverflowError as exc:
            raise SqlError("22003", "value out of range: overflow") from exc

    return guarded


def _square_root(number: float) -> float:
    if number < 0:
        raise SqlError("2201F", "cannot take square root of a negative number")
    return math.sqrt(number)


def _exp(number: float) -> float:
    result = math.exp(number)
    if result == 0 and number != -math.inf:
        raise SqlError("22003", "value out of range: underflow")
    return result


def _logarithm(function: Callable[[float], float]) -> Callable[[float], float]:
    def guarded(number: float) -> float:
        if number == 0:
            raise SqlError("2201E", "cannot take logarithm of zero")
        if number < 0:
            raise SqlError("2201E", "cannot take logarithm of a negative number")
        return function(number)

    return guarded


def double_power(base: float, exponent: float) -> float:
    """Return a power of doubles.

    Raises:
        SqlError: 2201F, the power is undefined; 22003, the power is too large or too small.
    """
    if base == 1 or exponent == 0:
        return 1.0
    if math.isnan(base) or math.isnan(exponent):
        return math.nan
    if base == 0 and exponent < 0:
        raise SqlError("2201F", "zero raised to a negative power is undefined")
    if base < 0 and math.isfinite(exponent) and not exponent.is_integer():
        raise SqlError("2201F", "a negative number raised to a non-integer power yields a complex result")
    try:
        result = math.pow(base, exponent)
    except OverflowError as exc:
        raise SqlError("22003", "value out of range: overflow") from exc
    if result == 0 and base and math.isfinite(base) and math.isfinite(exponent):
        raise SqlError("22003", "value out of range: underflow")
    return result


def _finite_angle(function: Callable[[float], float]) -> Callable[[float], float]:
    def guarded(angle: float) -> float:
        if math.isinf(angle):
            raise SqlError("22003", "input is out of range")
        return function(angle)

    return guarded


def _cotangent(angle: float) -> float:
    tangent = math.tan(angle)
    return 1 / tangent if tangent else math.copysign(math.inf, angle)


def _hyperbolic(function: Callable[[float], float], overflow: Callable[[float], float]) -> Callable[[float], float]:
    def guarded(number: float) -> float:
        try:
            return function(number)
        except OverflowError:
            return overflow(number)

    return guarded


def _checked_scaling(factor: Callable[[float], float]) -> Callable[[float], float]:
    def scaled(number: float) -> float:
        result = factor(number)
        if math.isinf(result) and not math.isinf(number):
            raise SqlError("22003", "value out of range: overflow")
        if number and not result:
            raise SqlError("22003", "value out of range: underflow")
        return result

    return scaled


def _add_of_doubles() -> None:
    of_one: dict[str, Callable[[float], float]] = {
        "sqrt": _square_root,
        "|/": _square_root,
        "cbrt": math.cbrt,
        "||/": math.cbrt,
        "exp": _exp,
        "ln": _logarithm(math.log),
        "log": _logarithm(math.log10),
        "log10": _logarithm(math.log10),
        **{name: _finite_angle(getattr(math, name)) for name in ("sin", "cos", "tan")},
        "cot": _finite_angle(_cotangent),
        **{name: getattr(math, name) for name in ("asin", "acos", "atan", "asinh", "acosh", "tanh")},
        "atanh": lambda number: math.copysign(math.inf, number) if abs(number) == 1 else math.atanh(number),
        "sinh": _hyperbolic(math.sinh, lambda number: math.copysign(math.inf, number)),
        "cosh": _hyperbolic(math.cosh, lambda _: math.inf),
        "degrees": _checked_scaling(math.degrees),
        "radians": _checked_scaling(math.radians),
    }
    words = {"|/": "square_root", "||/": "cube_root"}
    for symbol, function in of_one.items():
        FUNCTIONS.define(symbol, (_D,), _D, word=words.get(symbol))(_guarded(function))
    FUNCTIONS.define("atan2", (_D, _D), _D, can_fail=False)(_guarded(math.atan2))
    for symbol in ("power", "pow", "^"):
        word = "raise" if symbol == "^" else None
        FUNCTIONS.define(symbol, (_D, _D), _D, word=word)(double_power)
        FUNCTIONS.define(symbol, (_N, _N), _N, word=word)(power)
    FUNCTIONS.define("pi", (), _D, can_fail=False)(lambda: math.pi)


_EXACT_SINES = {0.0: 0.0, 30.0: 0.5, 90.0: 1.0}
_EXACT_ARCS = {0.0: 0.0, 0.5: 30.0, 1.0: 90.0}
_HALF_TURN = 180.0


def _first_quadrant(angle: float) -> tuple[float, int, int]:
    """Return the angle in degrees from 0 to 90 with the same absolute sine, and the signs of sine and cosine."""
    sine = -1 if angle < 0 else 1
    cosine = 1
    angle = math.fmod(abs(angle), 2 * _HALF_TURN)
    if angle > _HALF_TURN:
        angle, sine = 2 * _HALF_TURN - angle, -sine
    if angle > _HALF_TURN / 2:
        angle, cosine = _HALF_TURN - angle, -1
    return angle, sine, cosine


def _sine_of_degrees(angle: float) -> float:
    exact = _EXACT_SINES.get(angle)
    return math.sin(math.radians(angle)) if exact is None else exact


def _sind(angle: float) -> float:
    angle, sign, _ = _first_quadrant(angle)
    return sign * _sine_of_degrees(angle)


def _cosine_of_degrees(angle: float) -> float:
    exact = _EXACT_SINES.get(_HALF_TURN / 2 - angle)
    return math.cos(math.radians(angle)) if exact is None else exact


def _cosd(angle: float) -> float:
    angle, _, sign = _first_quadrant(angle)
    return sign * _cosine_of_degrees(angle)


def _tand(angle: float) -> float:
    angle, sine, cosine = _first_quadrant(angle)
    if angle == _HALF_TURN / 4:
        return float(sine * cosine)
    divisor = _cosine_of_degrees(angle)
    return sine * cosine * (_sine_of_degrees(angle) / divisor if divisor else math.inf)


def _cotd(angle: float) -> float:
    angle, sine, cosine = _first_quadrant(angle)
    if angle == _HALF_TURN / 4:
        return float(sine * cosine)
    divisor = _sine_of_degrees(angle)
    return sine * cosine * (_cosine_of_degrees(angle) / divisor if divisor else math.inf)


def _asind(sine: float) -> float:
    exact = _EXACT_ARCS.get(abs(sine))
    return math.degrees(math.asin(sine)) if exact is None else math.copysign(exact, sine)


def _acosd(cosine: float) -> float:
    exact = _EXACT_ARCS.get(abs(cosine))
    return math.degrees(math.acos(cosine)) if exact is None else _HALF_TURN / 2 - math.copysign(exact, cosine)


def _gamma(number: float) -> float:
    if number == -math.inf or (number <= 0 and number.is_integer()):
        raise SqlError("22003", "value out of range: overflow")
    result = math.gamma(number)
    if not result:
        raise SqlError("22003", "value out of range: underflow")
    return result


def _log_gamma(number: float) -> float:
    if number <= 0 and number.is_integer():
        raise SqlError("22003", "value out of range: overflow")
    return math.lgamma(number)


def _add_of_degrees() -> None:
    of_one: dict[str, Callable[[float], float]] = {
        "sind": _finite_angle(_sind),
        "cosd": _finite_angle(_cosd),
        "tand": _finite_angle(_tand),
        "cotd": _finite_angle(_cotd),
        "asind": _asind,
        "acosd": _acosd,
        "atand": lambda number: math.degrees(math.atan(number)),
        "gamma": _gamma,
        "lgamma": _log_gamma,
        "erf": math.erf,
        "erfc": math.erfc,
    }
    for symbol, function in of_one.items():
        FUNCTIONS.define(symbol, (_D,), _D)(_guarded(function))
    FUNCTIONS.define("atan2d", (_D, _D), _D, can_fail=False)(
        _guarded(lambda height, width: math.degrees(math.atan2(height, width)))
    )


def _bucket(operand: Any, low: Any, high: Any, count: int) -> int:
    if count <= 0:
        raise SqlError("2201G", "count must be greater than zero")
    numbers = [Decimal(number) for number in (operand, low, high)]
    if any(number.is_nan() for number in numbers):
        raise SqlError("2201G", "operand, lower bound, and upper bound cannot be NaN")
    if not (numbers[1].is_finite() and numbers[2].is_finite()):
        raise SqlError("2201G", "lower and upper bounds must be finite")
    if low == high:
        raise SqlError("2201G", "lower bound cannot equal upper bound")
    value, begin, end = (numbers[0], low, high) if low < high else (-numbers[0], -low, -high)
    if value < begin or value >= end:
        return in_range(_I, 0 if value < begin else count + 1)
    width = EXACT.subtract(Decimal(end), Decimal(begin))
    share = EXACT.multiply(EXACT.subtract(value, Decimal(begin)), Decimal(count))
    return int(share // width) + 1 if width < Decimal(10) ** 20 else int(divided(share, width, 0)) + 1


def _add_of_numeric() -> None:
    define = FUNCTIONS.define
    define("sqrt", (_N,), _N)(square_root)
    define("exp", (_N,), _N)(exponential)
    define("ln", (_N,), _N)(logarithm)
    for symbol in ("log", "log10"):
        define(symbol, (_N,), _N)(lambda number: logarithm_of_base(Decimal(10), number))
    define("log", (_N, _N), _N)(logarithm_of_base)
    define("width_bucket", (_N, _N, _N, _I), _I)(_bucket)
    define("width_bucket", (_D, _D, _D, _I), _I)(_bucket)


_add_roundings()
_add_divisions()
_add_bits()
_add_of_doubles()
_add_of_degrees()
_add_of_numeric()
