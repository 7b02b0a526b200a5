"""Formatting and parsing by templates: `to_char`, `to_date`, `to_timestamp` and `to_number`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.scalar.datetime import TIMESTAMP_TYPES, century_of, checked_date, checked_timestamp, iso_week
from derive.functions.types.datetime import (
    DAY,
    HOUR,
    INFINITY,
    MINUTE,
    SECOND,
    Interval,
    civil_of,
    days_of,
    length_of_month,
)
from derive.functions.types.formats import numeric_of_text
from derive.functions.types.numbers import rounded

FUNCTIONS = Functions()

_MONTHS = "January February March April May June July August September October November December"
MONTHS = tuple(_MONTHS.split(" "))
_DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday"
DAYS = tuple(_DAYS.split(" "))
_ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
_WIDEST_NAME = 9

_WORDS = (
    "Y,YYY YYYY YYY YY Y IYYY IYY IY IDDD ID IW I MONTH Month MON Mon MM MI MS DAY Day DY Dy DDD DD D J Q WW W CC RM"
    " HH24 HH12 HH SSSSS SSSS SS US FF1 FF2 FF3 FF4 FF5 FF6 A.M. P.M. AM PM A.D. B.C. AD BC TZH TZM TZ OF"
)
_PATTERNS = sorted({form for word in _WORDS.split(" ") for form in (word, word.lower())}, key=len, reverse=True)
_TOKEN = re.compile(
    r"(?P<fill>FM|fm)?(?P<word>" + "|".join(map(re.escape, _PATTERNS)) + r")(?P<ordinal>TH|th)?"
    r'|(?P<exact>FX|fx)|"(?P<quoted>(?:[^"\\]|\\.)*)"?|(?P<text>.)',
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A part of a template.

    Attributes:
        word: the field, in upper case, or Month, Mon, Day, Dy; None for literal text.
        written: spelling in the template; the literal text.
        is_plain: whether padding with blanks or zeros is suppressed.
        ordinal: the suffix `TH` or `th`; None if missing.
        is_lower: whether the word is in lower case.
    """

    word: str | None
    written: str
    is_plain: bool = False
    ordinal: str | None = None
    is_lower: bool = False


def tokens_of(template: str) -> Iterator[Token]:
    """Yield the parts of a template."""
    for match in _TOKEN.finditer(template):
        word = match["word"]
        if word:
            is_capitalized = word in {"Month", "Mon", "Day", "Dy"}
            name = word if is_capitalized else word.upper()
            yield Token(name, word, match["fill"] is not None, match["ordinal"], word.islower())
        elif match["text"] is not None:
            yield Token(None, match["text"])
        elif match["quoted"] is not None:
            yield Token(None, re.sub(r"\\(.)", r"\1", match["quoted"]))


def ordinal_of(number: int) -> str:
    """Return the suffix of an ordinal number."""
    last = abs(number) % 100
    return "th" if 10 < last < 20 else {1: "st", 2: "nd", 3: "rd"}.get(last % 10, "th")


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of a timestamp."""

    days: int
    time: int
    has_zone: bool

    def numbers(self) -> dict[str, tuple[int, int]]:
        """Return numeric fields, with their minimum number of digits."""
        return {**self._years(), **self._dates(), **self._times()}

    def _years(self) -> dict[str, tuple[int, int]]:
        year, (iso_year, week) = civil_of(self.days).year, iso_week(self.days)
        shown, iso_shown = (number if number > 0 else 1 - number for number in (year, iso_year))
        widths = {"YYY": 3, "YY": 2, "Y": 1}
        return {
            "YYYY": (shown, 4),
            "IYYY": (iso_shown, 4),
            **{name: (shown % 10**width, width) for name, width in widths.items()},
            **{f"I{name[1:]}": (iso_shown % 10**width, width) for name, width in widths.items()},
            "IW": (week, 2),
            "IDDD": ((week - 1) * 7 + (self.days + 3) % 7 + 1, 3),
            "CC": (century_of(year), 2),
        }

    def _dates(self) -> dict[str, tuple[int, int]]:
        date = civil_of(self.days)
        day_of_year = self.days - days_of(date.year, 1, 1) + 1
        return {
            "MM": (date.month, 2),
            "DDD": (day_of_year, 3),
            "DD": (date.day, 2),
            "D": ((self.days + 4) % 7 + 1, 1),
            "ID": ((self.days + 3) % 7 + 1, 1),
            "WW": ((day_of_year - 1) // 7 + 1, 2),
            "W": ((date.day - 1) // 7 + 1, 1),
            "J": (self.days + 2_440_588, 1),
            "Q": ((date.month - 1) // 3 + 1, 1),
        }

    def _times(self) -> dict[str, tuple[int, int]]:
        hour = self.time // HOUR
        seconds, fraction = divmod(self.time, SECOND)
        return {
            "HH24": (hour, 2),
            "HH12": (hour % 12 or 12, 2),
            "HH": (hour % 12 or 12, 2),
            "MI": (self.time // MINUTE % 60, 2),
            "SS": (seconds % 60, 2),
            "SSSS": (seconds, 1),
            "SSSSS": (seconds, 1),
            "MS": (fraction // 1000, 3),
            "US": (fraction, 6),
            **{f"FF{digits}": (fraction // 10 ** (6 - digits), digits) for digits in range(1, 7)},
        }

    def names(self) -> dict[str, tuple[str, int]]:
        """Return word fields, with their width."""
        date = civil_of(self.days)
        month, day = MONTHS[date.month - 1], DAYS[(self.days + 4) % 7]
        half = "PM" if self.time >= 12 * HOUR else "AM"
        era = "AD" if date.year > 0 else "BC"
        words = {
            "MONTH": (month.upper(), _WIDEST_NAME),
            "Month": (month, _WIDEST_NAME),
            "MON": (month[:3].upper(), 0),
            "Mon": (month[:3], 0),
            "DAY": (day.upper(), _WIDEST_NAME),
            "Day": (day, _WIDEST_NAME),
            "DY": (day[:3].upper(), 0),
            "Dy": (day[:3], 0),
            "RM": (_ROMAN[date.month - 1], 4),
            "TZ": ("UTC" if self.has_zone else "", 0),
            "TZH": ("+00", 0),
            "TZM": ("00", 0),
            "OF": ("+00", 0),
        }
        for form in ("AM", "PM"):
            words |= {form: (half, 0), f"{form[0]}.M.": (f"{half[0]}.M.", 0)}
        for form in ("AD", "BC"):
            words |= {form: (era, 0), f"{form[0]}.{form[1]}.": (f"{era[0]}.{era[1]}.", 0)}
        return words


def _written_datetime(has_zone: bool) -> Callable[[int, str], str | None]:
    def write(timestamp: int, template: str) -> str | None:
        if abs(timestamp) == INFINITY or not template:
            return None
        fields = _Fields(*divmod(timestamp, DAY), has_zone)
        numbers, names = fields.numbers(), fields.names()
        return "".join(_shown(token, numbers, names) for token in tokens_of(template))

    return write


_OF_DATES = frozenset(
    "MONTH Month MON Mon DAY Day DY Dy D ID AD BC A.D. B.C. TZ TZH TZM OF".split(" ")  # noqa: SIM905
)
"""Fields that depend on a date or on a zone."""
_OF_CALENDAR_WEEKS = frozenset({"IYYY", "IYY", "IY", "I", "IW", "IDDD", "J"})
_WITH_SIGN = frozenset({"DDD", "DD", "WW", "W", "MS", "US"})
"""Fields whose width includes the sign; in the others the sign is in addition to the digits."""
_DAYS_OF_MONTH = 30


def _truncated(number: int, divisor: int) -> int:
    """Return a quotient truncated towards zero."""
    return abs(number) // divisor * (1 if number >= 0 else -1)


def _interval_fields(interval: Interval) -> dict[str, tuple[int, int]]:
    """Return numeric fields of an interval, each with its minimum number of digits."""
    year, month = _truncated(interval.months, 12), int(math.fmod(interval.months, 12))
    days = interval.months * _DAYS_OF_MONTH + interval.days
    time = interval.microseconds
    hour, fraction = _truncated(time, HOUR), time - _truncated(time, SECOND) * SECOND
    half_day = int(math.fmod(hour, 12)) or 12
    century = _truncated(year, 100)
    return {
        "YYYY": (year, 4),
        **{name: (int(math.fmod(year, 10**width)), width) for name, width in (("YYY", 3), ("YY", 2), ("Y", 1))},
        "CC": (century, 2),
        "MM": (month, 2),
        "DDD": (days, 3),
        "DD": (interval.days, 2),
        "WW": (_truncated(days - 1, 7) + 1, 2),
        "W": (_truncated(interval.days - 1, 7) + 1, 1),
        "HH24": (hour, 2),
        "HH12": (half_day, 2),
        "HH": (half_day, 2),
        "MI": (_truncated(time - hour * HOUR, MINUTE), 2),
        "SS": (int(math.fmod(_truncated(time, SECOND), 60)), 2),
        "SSSS": (_truncated(time, SECOND), 1),
        "SSSSS": (_truncated(time, SECOND), 1),
        "MS": (_truncated(fraction, 1000), 3),
        "US": (fraction, 6),
        **{f"FF{digits}": (_truncated(fraction, 10 ** (6 - digits)), digits) for digits in range(1, 7)},
    }


def _interval_names(interval: Interval) -> dict[str, tuple[str, int]]:
    """Return word fields of an interval, each with its width."""
    years, months = _truncated(interval.months, 12), int(math.fmod(interval.months, 12))
    hour = int(math.fmod(_truncated(interval.microseconds, HOUR), 24))
    half = "PM" if hour >= 12 else "AM"
    numeral = _ROMAN[months - 1] if months > 0 else _ROMAN[12 + months] if months else ""
    if not months and years:
        numeral = "XII" if years > 0 else "I"
    names = {"RM": (numeral, 4 if numeral else 0)}
    for form in ("AM", "PM"):
        names |= {form: (half, 0), f"{form[0]}.M.": (f"{half[0]}.M.", 0)}
    return names


def _written_interval(interval: Interval, template: str) -> str | None:
    if not template:
        return None
    tokens = list(tokens_of(template))
    for token in tokens:
        if token.word in _OF_DATES:
            hint = "Intervals are not tied to specific calendar dates."
            raise SqlError("22007", "invalid format specification for an interval value", hint=hint)
        if token.word in _OF_CALENDAR_WEEKS:
            raise SqlError("0A000", f'"{token.written}" is not supported for intervals')
    numbers, names = _interval_fields(interval), _interval_names(interval)
    month = numbers["MM"][0]
    if month:
        numbers["Q"] = (_truncated(month - 1, 3) + 1, 1)
    else:
        names["Q"] = ("", 0)
    return "".join(_shown(token, numbers, names) for token in tokens)


def _shown(token: Token, numbers: dict[str, tuple[int, int]], names: dict[str, tuple[str, int]]) -> str:
    if token.word is None:
        return token.written
    if token.word in names:
        name, width = names[token.word]
        shown = name.lower() if token.is_lower else name
        return shown if token.is_plain else shown.ljust(width)
    if token.word == "Y,YYY":
        year = numbers["YYYY"][0]
        return f"{_truncated(year, 1000)},{int(math.fmod(year, 1000)):03}"
    number, width = numbers[token.word]
    fills = token.word in {"MS", "US"} or token.word.startswith("FF") or not token.is_plain
    is_in_width = token.word in _WITH_SIGN or token.word.startswith("FF")
    sign = "-" if number < 0 else ""
    shown = sign + str(abs(number)).zfill(width - (is_in_width and number < 0) if fills else 1)
    if token.ordinal is None:
        return shown
    ordinal = ordinal_of(number)
    return shown + (ordinal.upper() if token.ordinal == "TH" else ordinal)


_FIGURES = {"YYYY": 4, "YYY": 3, "YY": 2, "Y": 1, "MM": 2, "DD": 2, "DDD": 3, "HH24": 2, "HH12": 2, "HH": 2, "MI": 2}
_FIGURES |= {"SS": 2, "MS": 3, "US": 6, "J": 7, "SSSS": 5, "SSSSS": 5}
_MOST_FIGURES = 10
"""Digits of any field, with its sign."""
_IGNORED = {"DAY", "Day", "DY", "Dy"}


class _Reader:
    """Parses a text by a template, field by field."""

    def __init__(self, text: str, template: str) -> None:
        self._text = text
        self._at = 0
        self._tokens = list(tokens_of(template))
        self.values: dict[str, int] = {}
        self._read()

    def _read(self) -> None:
        for index, token in enumerate(self._tokens):
            if token.word is None:
                self._skip(token.written)
                continue
            self._skip_spaces()
            if token.word.upper() in {"MONTH", "MON"}:
                self._month(token)
            elif token.word in {"AM", "PM", "A.M.", "P.M."}:
                self.values["half"] = int(self._word(("A.M.", "P.M.", "AM", "PM"), token).upper().startswith("P"))
            elif token.word in {"BC", "AD", "B.C.", "A.D."}:
                self.values["era"] = int(self._word(("A.D.", "B.C.", "AD", "BC"), token).upper().startswith("B"))
            elif token.word in _IGNORED:
                self._word((*DAYS, *(day[:3] for day in DAYS)), token)
            elif token.word in _FIGURES:
                following = self._tokens[index + 1] if index + 1 < len(self._tokens) else None
                self._number(token, following)
            else:
                raise SqlError("0A000", f'"{token.written}" is not supported for reading dates')

    def _skip(self, separator: str) -> None:
        if self._at < len(self._text) and (not self._text[self._at].isalnum() or self._text[self._at] == separator):
            self._at += 1

    def _skip_spaces(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _word(self, words: tuple[str, ...], token: Token) -> str:
        rest = self._text[self._at :].lower()
        for word in words:
            if rest.startswith(word.lower()):
                self._at += len(word)
                return word
        what = f'invalid value "{self._text[self._at : self._at + len(token.written)]}" for "{token.written}"'
        raise SqlError("22007", what, detail="The given value did not match any of the allowed values for this field.")

    def _month(self, token: Token) -> None:
        short = tuple(month[:3] for month in MONTHS)
        word = self._word((*MONTHS, *short) if token.word in {"MONTH", "Month"} else short, token)
        self.values["MM"] = short.index(word[:3]) + 1

    def _number(self, token: Token, following: Token | None) -> None:
        assert token.word is not None
        is_last = following is None or (following.word is None and not following.written.isdigit())
        width = "" if is_last or token.is_plain else _FIGURES[token.word]
        signs = "[+-]?" if token.word == "YYYY" else ""
        match = re.compile(rf"{signs}\d{{1,{width}}}", re.ASCII).match(self._text, self._at)
        if match is None:
            shown = self._text[self._at : self._at + _FIGURES[token.word]]
            detail = "Value must be an integer."
            raise SqlError("22007", f'invalid value "{shown}" for "{token.written}"', detail=detail)
        self._at = match.end()
        digits = match[0]
        if token.word in {"MS", "US"}:
            number = int(digits[: _FIGURES[token.word]].ljust(_FIGURES[token.word], "0"))
        elif len(digits) > _MOST_FIGURES:
            raise SqlError("22008", f'value for "{token.written}" in source string is out of range')
        else:
            number = int(digits)
        self.values[token.word] = number


def _year(values: dict[str, int]) -> int:
    if "YYYY" in values:
        year = values["YYYY"]
    elif "YYY" in values or "YY" in values or "Y" in values:
        year = values.get("YYY", values.get("YY", values.get("Y", 0)))
        year += 2000 if year < 70 else 1900 if year < 100 else 2000 if year < 520 else 1000
    else:
        year = 0
    if values.get("era"):
        return 1 - year if year else 0
    return year + 1 if year < 0 else year


def _out_of_range(text: str) -> SqlError:
    return SqlError("22008", f'date/time field value out of range: "{text}"')


def _date_of(text: str, values: dict[str, int]) -> int:
    if "J" in values:
        return values["J"] - 2_440_588
    year = _year(values)
    if "DDD" in values:
        days = days_of(year, 1, 1) + values["DDD"] - 1
        if not 1 <= values["DDD"] <= 366 or civil_of(days).year != year:
            raise _out_of_range(text)
        return days
    month, day = values.get("MM", 1), values.get("DD", 1)
    if not 1 <= month <= 12 or not 1 <= day <= length_of_month(year, month):
        raise _out_of_range(text)
    return days_of(year, month, day)


def _read_date(text: str, template: str) -> int:
    values = _Reader(text, template).values
    _time_of(text, values)
    return checked_date(_date_of(text, values))


def _time_of(text: str, values: dict[str, int]) -> int:
    hour = values.get("HH24", values.get("HH12", values.get("HH", 0)))
    if "HH24" not in values and ("HH12" in values or "HH" in values):
        if not 1 <= hour <= 12:
            hint = "Use the 24-hour clock, or give an hour between 1 and 12."
            raise SqlError("22007", f'hour "{hour}" is invalid for the 12-hour clock', hint=hint)
        if "half" in values:
            hour = hour % 12 + 12 * values["half"]
    minute, second = values.get("MI", 0), values.get("SS", 0)
    if "SSSS" in values or "SSSSS" in values:
        seconds = values.get("SSSS", values.get("SSSSS", 0))
        hour, minute, second = seconds // 3600, seconds // 60 % 60, seconds % 60
    if hour > 23 or minute > 59 or second > 59:
        raise _out_of_range(text)
    return (hour * 3600 + minute * 60 + second) * SECOND + values.get("MS", 0) * 1000 + values.get("US", 0)


def _read_timestamp(text: str, template: str) -> int:
    values = _Reader(text, template).values
    return checked_timestamp(_date_of(text, values) * DAY + _time_of(text, values))


def _add_datetime_templates() -> None:
    for kind in TIMESTAMP_TYPES:
        FUNCTIONS.define("to_char", (kind, Type.TEXT), Type.TEXT)(_written_datetime(kind is Type.TIMESTAMPTZ))
    FUNCTIONS.define("to_char", (Type.INTERVAL, Type.TEXT), Type.TEXT)(_written_interval)
    FUNCTIONS.define("to_date", (Type.TEXT, Type.TEXT), Type.DATE)(_read_date)
    FUNCTIONS.define("to_timestamp", (Type.TEXT, Type.TEXT), Type.TIMESTAMPTZ)(_read_timestamp)


_add_datetime_templates()


_NUMBER_TOKEN = re.compile(r'FM|MI|PL|SG|PR|TH|EEEE|RN|"(?:[^"\\]|\\.)*"?|[90.,DGSVL]|.', re.IGNORECASE | re.DOTALL)
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
        """Return whether an `S` precedes the first digit; such templates write plus signs, too."""
        return next((part for part in self.parts if part in {"S", "9", "0"}), None) == "S"

    def of_whole_numbers(self) -> _Template:
        """Return the template without a decimal point and the digits after it."""
        point = next((index for index, part in enumerate(self.parts) if part in {".", "D"}), len(self.parts))
        rest = tuple(part for part in self.parts[point:] if part not in {".", "D", "9", "0"})
        return replace(self, parts=self.parts[:point] + rest, behind=0, least_behind=0)


def _template_of(text: str) -> _Template:
    parts = tuple(part if part[0] == '"' else part.upper() for part in _NUMBER_TOKEN.findall(text))
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


def _written_float(digits: int, number: float, text: str) -> str:
    """Return a number with digits after the point as long as it has at most this number of digits."""
    template = _template_of(text)
    behind = max(min(template.behind, digits - len(f"{abs(number):.0f}")), 0)
    template = replace(template, behind=behind) if behind else template.of_whole_numbers()
    return _written_number(Decimal(f"{number:.{behind}f}"), template)


def _written_number(number: Decimal, template: _Template) -> str:
    if not number.is_finite():
        raise SqlError("0A000", "templates cannot show NaN and infinities")
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
    """Return digits and other parts in the places of a template."""
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
            pieces.append(fraction[behind : behind + 1])
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


def _add_number_templates() -> None:
    for kind in (Type.INTEGER, Type.BIGINT, Type.NUMERIC):
        FUNCTIONS.define("to_char", (kind, Type.TEXT), Type.TEXT)(
            lambda number, text: _written_number(Decimal(number), _template_of(text))
        )
    for kind, digits in ((Type.REAL, 6), (Type.DOUBLE, 15)):
        FUNCTIONS.define("to_char", (kind, Type.TEXT), Type.TEXT)(partial(_written_float, digits))
    FUNCTIONS.define("to_number", (Type.TEXT, Type.TEXT), Type.NUMERIC)(_read)


_add_number_templates()
