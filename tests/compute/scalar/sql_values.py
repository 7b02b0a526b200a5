"""Values of every type, as SQL writes them, in their usual form: hostile ones often."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from derive.compute.algebra.types import ARRAYS, Type
from derive.compute.scalar.array import literal_of_texts
from derive.compute.scalar.calendar import text_of_date, text_of_moment
from derive.compute.scalar.double import text_of_double
from derive.compute.scalar.interval import Interval, text_of_interval
from derive.compute.scalar.jsonb import jsonb_datum
from derive.compute.scalar.numeric import text_of_numeric

_WORDS = [
    "",
    "a",
    "A",
    "abc",
    "ABC",
    "a b",
    " x ",
    "%",
    "_",
    "\\",
    "a%b",
    "é",
    "straße",
    "ǆ",
    "漢字",
    "🙂",
    "1",
    "-12.5",
    "true",
    "null",
    "2020-02-29",
    "1 day",
    "{}",
    "[1]",
]
_LETTERS = "aAbB1 _%\\é.*+?()[]-"


def _integers(bits: int) -> st.SearchStrategy[str]:
    most = (1 << bits - 1) - 1
    return st.one_of(
        st.integers(-10, 10), st.sampled_from([most, -most - 1, most - 1, most // 2]), st.integers(-most - 1, most)
    ).map(str)


_SMALL = st.integers(-5, 12).map(str)
_DOUBLES = st.one_of(
    st.sampled_from(
        [
            "0",
            "1",
            "-1",
            "0.5",
            "-2.5",
            "1e308",
            "-1e308",
            "1e-308",
            "5e-324",
            "NaN",
            "Infinity",
            "-Infinity",
            "0.1",
            "1e15",
            "9223372036854775807",
            "1e16",
            "123456789.125",
        ]
    ),
    st.floats(-1e6, 1e6).map(lambda number: text_of_double(number + 0.0)),
    st.floats().map(lambda number: text_of_double(number + 0.0)),
)
_NUMERICS = st.one_of(
    st.sampled_from(
        [
            "0",
            "1",
            "-1",
            "0.5",
            "1.5",
            "-2.5",
            "NaN",
            "Infinity",
            "-Infinity",
            "1e-20",
            "123456789012345678901234567890.123",
            "9223372036854775807.5",
            "99999999999999999999",
        ]
    ),
    st.decimals(-(10**6), 10**6, places=3).map(text_of_numeric),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30)
    .map(Decimal.normalize)
    .map(text_of_numeric)
    .filter(lambda text: len(text) < 60),
)
_TEXTS = st.one_of(st.sampled_from(_WORDS), st.text(_LETTERS, max_size=8))
_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-100, 10**20),
        st.sampled_from([Decimal("1.5"), Decimal("-0.25")]),
        st.sampled_from(_WORDS),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "abc", "é", "1"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_MOMENTS = st.one_of(
    st.sampled_from(
        [
            "infinity",
            "-infinity",
            "2020-02-29 23:59:59.999999",
            "0001-01-01 00:00:00",
            "0044-03-15 12:00:00 BC",
            "294246-12-31 23:59:59",
            "1969-12-31 23:59:59.5",
            "2000-01-31 00:00:00",
            "12345-01-01 00:00:00",
        ]
    ),
    st.integers(-(2 * 10**15), 4 * 10**15).map(text_of_moment),
)
_DATES = st.one_of(
    st.sampled_from(
        ["infinity", "-infinity", "2020-02-29", "0001-01-01", "0044-03-15 BC", "5874897-12-31", "1999-12-31"]
    ),
    st.integers(-30_000, 60_000).map(text_of_date),
)
_INTERVALS = st.one_of(
    st.sampled_from(["00:00:00", "1 mon", "30 days", "24:00:00", "-1 mons", "1 day -00:00:01"]),
    st.builds(Interval, st.integers(-30, 30), st.integers(-100, 100), st.integers(-(10**12), 10**12)).map(
        text_of_interval
    ),
)

_USUAL: dict[Type, st.SearchStrategy[str]] = {
    Type.BOOLEAN: st.sampled_from(["t", "f"]),
    Type.SMALLINT: _integers(16),
    Type.INTEGER: _integers(32),
    Type.BIGINT: _integers(64),
    Type.DOUBLE: _DOUBLES,
    Type.NUMERIC: _NUMERICS,
    Type.TEXT: _TEXTS,
    Type.BYTEA: st.binary(max_size=6).map(lambda data: f"\\x{data.hex()}"),
    Type.JSONB: _JSON.map(jsonb_datum),
    Type.DATE: _DATES,
    Type.TIMESTAMP: _MOMENTS,
    Type.TIMESTAMPTZ: _MOMENTS.map(
        lambda text: (
            text if "infinity" in text else f"{text.removesuffix(' BC')}+00{' BC' if text.endswith(' BC') else ''}"
        )
    ),
    Type.INTERVAL: _INTERVALS,
}
_USUAL |= {
    kind: st.lists(st.one_of(st.none(), _USUAL[kind.element]), max_size=4).map(literal_of_texts)
    for kind in ARRAYS
    if kind.element
}

_PATTERNS = st.one_of(
    st.text("aAb%_", max_size=6), st.sampled_from(["\\%", "a\\_b", "a\\", "(a|b)%", "[ab]+", "%a%", "'%"])
)
_EXPRESSIONS = st.one_of(
    st.text("aAb.", max_size=4),
    st.sampled_from(
        ["^a", "b$", "(a)(b)?", "[[:alpha:]]+", "[^a]", "\\d+", "a{2}", "(", "[", "a|b", "\\mab", "\\yb", "*"]
    ),
)
_FIELDS = st.sampled_from(
    [
        "microseconds",
        "milliseconds",
        "second",
        "minute",
        "hour",
        "day",
        "week",
        "month",
        "quarter",
        "year",
        "decade",
        "century",
        "millennium",
        "epoch",
        "dow",
        "doy",
        "isodow",
        "isoyear",
        "julian",
        "timezone",
        "timezone_hour",
        "other",
        "years",
    ]
)
_ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "+02", "-05:30", "CEST", "Nowhere"])
_KEYS = st.sampled_from(["a", "b", "abc", "é", "1", "0", "x"])
_PATHS = st.one_of(
    st.lists(st.sampled_from(["a", "b", "abc", "0", "1", "-1", "2"]), max_size=3).map(
        lambda steps: f"{{{','.join(steps)}}}"
    ),
    st.sampled_from(["{}", "{NULL}", '{"a"}', "{a, 0}"]),
)
_TEMPLATES = st.one_of(
    st.sampled_from(
        [
            "YYYY-MM-DD HH24:MI:SS.US",
            "Day, DDth Month YYYY",
            "FMMonth FMDD",
            "HH12:MI AM",
            "IYYY-IW-ID",
            'Q "quarter"',
            "J DDD WW W CC RM",
            "MS FF3 SSSS TZ OF",
            "yyyy mon dy BC",
        ]
    ),
    st.lists(
        st.sampled_from(
            [
                "YYYY",
                "YYY",
                "YY",
                "Y",
                "IYYY",
                "IDDD",
                "MONTH",
                "Mon",
                "month",
                "MM",
                "MI",
                "DAY",
                "dy",
                "DDD",
                "DD",
                "D",
                "ID",
                "J",
                "Q",
                "WW",
                "W",
                "IW",
                "CC",
                "RM",
                "rm",
                "HH24",
                "HH12",
                "HH",
                "SSSS",
                "SS",
                "MS",
                "US",
                "FF1",
                "FF6",
                "AM",
                "p.m.",
                "A.D.",
                "bc",
                "TZ",
                "OF",
                "FMDD",
                "FMMonth",
                "FMHH24",
                "DDth",
                "MMTH",
                "-",
                "/",
                ":",
                "x",
            ]
        ),
        max_size=4,
    ).map(" ".join),
)
_ENCODINGS = st.sampled_from(["hex", "base64", "escape", "HEX", "other", "utf8"])
_SPECIAL: dict[tuple[str, Type], st.SearchStrategy[str]] = {
    **{(symbol, Type.TEXT): st.one_of(_PATTERNS, _TEXTS) for symbol in ("~~", "!~~", "~~*", "!~~*")},
    **{
        (symbol, Type.TEXT): st.one_of(_EXPRESSIONS, _TEXTS, st.just("g"))
        for symbol in (
            "~",
            "!~",
            "~*",
            "!~*",
            "regexp_replace",
            "regexp_like",
            "regexp_count",
            "regexp_substr",
            "regexp_instr",
            "substring",
        )
    },
    **{(symbol, Type.TEXT): _FIELDS for symbol in ("extract", "date_part", "date_trunc")},
    **{(symbol, Type.TEXT): _ZONES for symbol in ("timezone", "date_add", "date_subtract", "make_timestamptz")},
    **{
        (symbol, Type.TEXT): _KEYS
        for symbol in ("->", "->>", "?", "-", "jsonb_extract_path", "jsonb_extract_path_text")
    },
    **{(symbol, Type.TEXT_ARRAY): _PATHS for symbol in ("#>", "#>>", "#-", "?|", "?&", "jsonb_set", "jsonb_insert")},
    **{(symbol, Type.INTEGER): _SMALL for symbol in ("->", "->>", "-")},
    ("to_char", Type.TEXT): _TEMPLATES,
    **{
        (symbol, Type.TEXT): st.sampled_from(["2020-02-29", "20200105", "YYYY-MM-DD", "YYYYMMDD", "2021-02-30"])
        for symbol in ("to_date", "to_timestamp")
    },
    ("text_to_interval", Type.TEXT): st.sampled_from(["1 day", "a", "", "1:02:03.5", "-3 years 2 mons", "1e3 s"]),
    ("make_date", Type.INTEGER): st.integers(-3, 2030).map(str),
    ("make_timestamp", Type.INTEGER): st.integers(0, 30).map(str),
    ("make_timestamptz", Type.INTEGER): st.integers(0, 30).map(str),
    ("make_timestamp", Type.DOUBLE): st.sampled_from(["0", "59.999", "60", "1.5", "-1", "61"]),
    ("make_timestamptz", Type.DOUBLE): st.sampled_from(["0", "59.999", "60", "1.5", "-1", "61"]),
    ("encode", Type.TEXT): _ENCODINGS,
    ("decode", Type.TEXT): st.one_of(_ENCODINGS, st.sampled_from(["00ff", "YWJj", "a\\001"])),
    ("convert_from", Type.TEXT): _ENCODINGS,
    ("convert_to", Type.TEXT): st.sampled_from(["utf8", "é", "UTF-8"]),
}
"""What makes sense as an argument of certain functions."""


def usual_texts(kind: Type) -> st.SearchStrategy[str]:
    return _USUAL[kind]


def texts_of(kind: Type, symbol: str = "") -> st.SearchStrategy[str | None]:
    """Texts of values that an argument of a function may have; None is NULL."""
    values = _SPECIAL.get((symbol, kind), _USUAL[kind])
    if symbol[:1].isalpha() and kind in {Type.INTEGER, Type.BIGINT} and symbol not in {"abs"}:
        values = (
            st.one_of(_SMALL, _SMALL, values) if symbol not in {"repeat", "lpad", "rpad", "round", "trunc"} else _SMALL
        )
    return st.one_of(st.none(), *[values] * 9)
