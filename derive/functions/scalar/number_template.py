"""Formatting and parsing of numbers by templates: `to_char` and `to_number`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.scalar.datetime_template import ordinal_of
from derive.functions.types.numeric import rounded
from derive.functions.types.text_format import numeric_of_text

FUNCTIONS = Functions()

_TOKEN = re.compile(r'FM|MI|PL|SG|PR|TH|EEEE|RN|"(?:[^"\\]|\\.)*"?|[90.,DGSVL]|.', re.IGNORECASE | re.DOTALL)
_UNSUPPORTED = {"EEEE", "RN", "V", "L", "PR"}


@dataclass(frozen=True, slots=True)
class _Template:
    """A template.

    Attributes:
        parts: its tokens, in upper case except for text.
        before: number of digits before the decimal point.
        behind: number of digits after the decimal point.
        first_zero: index of the digit before the point from which on zeros are written; `before` for none.
        least_behind: minimum number of written digits after the point, including trailing zeros.
    """

    parts: tuple[str, ...]
    before: int
    behind: int
    first_zero: int
    least_behind: int

    @property
    def is_plain(self) -> bool:
        """Return whether padding is suppressed."""
        return "FM" in self.parts

    @property
    def has_sign(self) -> bool:
        """Return whether the sign has its own place, instead of before the first digit."""
        return any(part in {"MI", "PL", "SG"} for part in self.parts) or (
            "S" in self.parts and not self.begins_with_sign
        )

    @property
    def begins_with_sign(self) -> bool:
        """Return whether there is an `S` before the first digit, where plus signs are written, too."""
        return next((part for part in self.parts if part in {"S", "9", "0"}), None) == "S"


def _template_of(text: str) -> _Template:
    parts = tuple(part if part[0] == '"' else part.upper() for part in _TOKEN.findall(text))
    for part in parts:
        if part in _UNSUPPORTED:
            raise SqlError("0A000", f'"{part}" in templates of numbers is not supported')
    points = [index for index, part in enumerate(parts) if part in {".", "D"}]
    if len(points) > 1:
        raise SqlError("42601", "multiple decimal points")
    point = points[0] if points else len(parts)
    before = [part for part in parts[:point] if part in {"9", "0"}]
    behind = [part for part in parts[point:] if part in {"9", "0"}]
    first_zero = before.index("0") if "0" in before else len(before)
    least = len(behind) - behind[::-1].index("0") if "0" in behind else 0
    return _Template(parts, len(before), len(behind), first_zero, least)


def _written(number: Decimal, text: str) -> str:
    template = _template_of(text)
    if not number.is_finite():
        raise SqlError("0A000", "templates cannot show what is not a finite number")
    shown = rounded(number, template.behind)
    is_negative = shown < 0
    figures = format(shown.copy_abs(), f".{template.behind}f")
    whole_part, _, fraction = figures.partition(".")
    whole_part = whole_part.lstrip("0")
    if not whole_part and not template.behind:
        whole_part = "0"
    is_too_large = len(whole_part) > template.before
    if is_too_large:
        whole_part, fraction = "#" * template.before, "#" * template.behind
    if template.is_plain and not is_too_large:
        fraction = fraction[: max(template.least_behind, len(fraction.rstrip("0")))]
        whole_part = whole_part or ("" if fraction else "0" * min(template.before, 1))
    return _laid_out(template, whole_part, fraction, is_negative)


def _laid_out(template: _Template, whole_part: str, fraction: str, is_negative: bool) -> str:
    """Return the digits and other parts in the places of a template."""
    first = min(template.before - len(whole_part), template.first_zero)
    digits = whole_part.rjust(template.before, "0")
    pieces: list[str] = []
    at = behind = 0
    is_behind, is_signed = False, template.has_sign
    for part in template.parts:
        if part in {"9", "0"} and not is_behind:
            if at == first and not is_signed:
                pieces.append(_default_sign(template, is_negative))
                is_signed = True
            pieces.append(digits[at] if at >= first else "" if template.is_plain else " ")
            at += 1
        elif part in {"9", "0"}:
            pieces.append(fraction[behind] if behind < len(fraction) else "" if template.is_plain else " ")
            behind += 1
        elif part in {".", "D"}:
            if not is_signed:
                pieces.append(_default_sign(template, is_negative))
                is_signed = True
            pieces.append(".")
            is_behind = True
        elif part in {",", "G"}:
            pieces.append("," if at > first else "" if template.is_plain else " ")
        else:
            pieces.append(_other(part, template, whole_part, is_negative))
    return "".join(pieces)


def _default_sign(template: _Template, is_negative: bool) -> str:
    if template.begins_with_sign:
        return "-" if is_negative else "+"
    return "-" if is_negative else "" if template.is_plain else " "


def _other(part: str, template: _Template, whole_part: str, is_negative: bool) -> str:
    blank = "" if template.is_plain else " "
    signs = {
        "FM": "",
        "S": "" if template.begins_with_sign else "-" if is_negative else "+",
        "SG": "-" if is_negative else "+",
        "MI": "-" if is_negative else blank,
        "PL": blank if is_negative else "+",
    }
    if part in signs:
        return signs[part]
    if part == "TH":
        is_shown = not is_negative and not template.behind and whole_part.isdigit()
        return ordinal_of(int(whole_part)).upper() if is_shown else ""
    return re.sub(r"\\(.)", r"\1", part.strip('"')) if part.startswith('"') else part


def _read(text: str, pattern: str) -> Decimal:
    """Parse a number, ignoring characters other than digits, point and sign."""
    template = _template_of(pattern)
    figures = re.sub(r"[^0-9.+-]", "", text)
    match = re.match(r"[+-]?\d*\.?\d*", figures)
    digits = match[0] if match else ""
    if not re.search(r"\d", digits):
        raise SqlError("22P02", f'invalid input syntax for type numeric: "{text.strip() or " "}"')
    is_negative = "-" in figures
    return rounded(numeric_of_text(f"{'-' if is_negative else ''}{digits.lstrip('+-')}"), template.behind)


def _add() -> None:
    for kind in (Type.INTEGER, Type.BIGINT, Type.NUMERIC):
        FUNCTIONS.define("to_char", (kind, Type.TEXT), Type.TEXT)(lambda number, text: _written(Decimal(number), text))
    FUNCTIONS.define("to_char", (Type.DOUBLE, Type.TEXT), Type.TEXT)(
        lambda number, text: _written(Decimal(f"{number:.15g}"), text)
    )
    FUNCTIONS.define("to_number", (Type.TEXT, Type.TEXT), Type.NUMERIC)(_read)


_add()
