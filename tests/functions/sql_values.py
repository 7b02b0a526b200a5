"""Values of every type, as SQL writes them, in their usual form: hostile ones often."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from derive.algebra.types import ARRAYS, Type
from derive.functions.types import timetz
from derive.functions.types.array_literal import literal_of_texts
from derive.functions.types.datetime import (
    DAY,
    Interval,
    text_of_date,
    text_of_interval,
    text_of_time,
    text_of_timestamp,
)
from derive.functions.types.jsonb import jsonb_datum
from derive.functions.types.network import Address, AddressType, address_datum, text_of_address
from derive.functions.types.numbers import text_of_double, text_of_numeric
from derive.functions.types.type_info import text_of

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
_REALS = st.one_of(
    st.sampled_from(["0", "1.1", "-2.5", "3.4028235e38", "1e-45", "NaN", "Infinity", "-Infinity", "16777217", "1e6"]),
    st.floats(-1e6, 1e6, width=32).map(lambda number: text_of(Type.REAL, number + 0.0)),
    st.floats(width=32).map(lambda number: text_of(Type.REAL, number + 0.0)),
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
_TIMESTAMPS = st.one_of(
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
    st.integers(-(2 * 10**15), 4 * 10**15).map(text_of_timestamp),
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

_TIMES = st.one_of(
    st.sampled_from(["00:00:00", "24:00:00", "23:59:59.999999", "12:00:00"]), st.integers(0, DAY).map(text_of_time)
)
_UUIDS = st.one_of(
    st.sampled_from(["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
    st.uuids().map(str),
)
_NUMBERS_V6 = st.one_of(
    st.integers(0, (1 << 128) - 1),
    st.integers(0, (1 << 33) - 1),
    st.builds(lambda number: 0xFFFF << 32 | number, st.integers(0, (1 << 32) - 1)),
    st.lists(st.sampled_from([0, 0, 0, 1, 0xFFFF]), min_size=8, max_size=8).map(
        lambda words: sum(word << 16 * index for index, word in enumerate(words))
    ),
)


def _addresses(*, is_network: bool) -> st.SearchStrategy[str]:
    kind: AddressType = "cidr" if is_network else "inet"
    return st.one_of(
        st.builds(Address, st.just(4), st.integers(0, (1 << 32) - 1), st.integers(0, 32)),
        st.builds(Address, st.just(4), st.sampled_from([10 << 24, (10 << 24) + 1]), st.sampled_from([8, 24, 31, 32])),
        st.builds(Address, st.just(6), _NUMBERS_V6, st.integers(0, 128)),
        st.builds(Address, st.just(6), _NUMBERS_V6, st.just(128)),
    ).map(lambda address: text_of_address(kind, address_datum(address.network if is_network else address)))


_MACS = st.one_of(
    st.sampled_from(["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"]),
    st.binary(min_size=6, max_size=6).map(lambda data: data.hex(":")),
)

_USUAL: dict[Type, st.SearchStrategy[str]] = {
    Type.BOOLEAN: st.sampled_from(["t", "f"]),
    Type.SMALLINT: _integers(16),
    Type.INTEGER: _integers(32),
    Type.BIGINT: _integers(64),
    Type.TIMETZ: st.tuples(st.integers(0, DAY), st.integers(-57_599, 57_599)).map(
        lambda time: text_of(Type.TIMETZ, timetz.datum_of(timetz.ZonedTime(*time)))
    ),
    Type.REAL: _REALS,
    Type.DOUBLE: _DOUBLES,
    Type.NUMERIC: _NUMERICS,
    Type.TEXT: _TEXTS,
    Type.BYTEA: st.binary(max_size=6).map(lambda data: f"\\x{data.hex()}"),
    Type.JSONB: _JSON.map(jsonb_datum),
    Type.DATE: _DATES,
    Type.TIMESTAMP: _TIMESTAMPS,
    Type.TIMESTAMPTZ: _TIMESTAMPS.map(
        lambda text: (
            text if "infinity" in text else f"{text.removesuffix(' BC')}+00{' BC' if text.endswith(' BC') else ''}"
        )
    ),
    Type.INTERVAL: _INTERVALS,
    Type.TIME: _TIMES,
    Type.UUID: _UUIDS,
    Type.INET: _addresses(is_network=False),
    Type.CIDR: _addresses(is_network=True),
    Type.MACADDR: _MACS,
}


def _arrays(elements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Draw arrays of at most four elements; some have two dimensions."""
    drawn = st.lists(st.one_of(st.none(), elements), max_size=4)
    return st.builds(
        lambda texts, is_nested: literal_of_texts(texts, (2, 2) if is_nested and len(texts) == 4 else ()),
        drawn,
        st.sampled_from([False, True]),
    )


_USUAL |= {kind: _arrays(_USUAL[kind.element]) for kind in ARRAYS if kind.element in _USUAL}

TIME_TEXTS = (
    *(
        "12:30",
        "1:2:3",
        "12:30:05.123456",
        "12:30:05.9999999",
        "23:59:59.9999999",
        "24:00",
        "24:00:01",
        "12:60",
        "25:00",
    ),
    *(
        "12:30:60",
        "12:30:61",
        "123005",
        "1230",
        "123005.5",
        "12:30 PM",
        "00:30 PM",
        "12:30 am",
        "12:30+02",
        "12:30 -05:30",
    ),
    *("12:30Z", "T12:30", "2020-02-29 12:30", "2020-02-29T12:30:05+02", "allballs", " 12:30 ", "", "x", "12", "12:3x"),
    *("now ", "-1:00", "2020-02-30 12:30", "2020-02-29"),
)
UUID_TEXTS = (
    *(
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        "{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}",
        "a0eebc999c0b4ef8bb6d6bb9bd380a11",
    ),
    *(
        "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11",
        "{a0eebc999c0b4ef8bb6d6bb9bd380a11",
        "a0eebc999c0b4ef8bb6d6bb9bd380a11}",
    ),
    *(
        " a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1",
        "a0eebc999c0b4ef8bb6d6bb9bd380a1-1",
    ),
    *("", "{}", "g0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11-"),
)
ADDRESS_TEXTS = (
    *("10.0.0.1", "10.0.0.1/8", "10.0.0.0/8", "10.0.0.1/32", "10.0.0.1/33", "10.1/16", "10.1", "10", "10/8", "192.168"),
    *(
        "128.1",
        "224",
        "224.1",
        "240",
        "10.1/24",
        "10.0.0.256",
        "010.0.0.1",
        "10.0.0.1/",
        "10.0.0.1/08",
        "10.0.0",
        "10.0.0.",
    ),
    *("::", "::1", "::/0", "::1/128", "::1/129", "::1/01", "2001:db8::1", "2001:DB8:0:0:1::1/64", "::ffff:10.0.0.1"),
    *(
        "::10.0.0.1",
        "1:2:3:4:5:6:7:8",
        "1:2:3:4:5:6:7",
        "1::2::3",
        "1:2:3:4:5:6:10.0.0.1",
        "12345::",
        "fe80::1%eth0",
        ":1",
    ),
    *(
        "2001:db8::/32",
        "2001:db8::1/32",
        " 10.0.0.1",
        "",
        "x",
        "10.0.0.1 ",
        "1.2.3.4.5",
        "0x10",
        "::ffff:0:0/96",
        "::/128",
    ),
)
MAC_TEXTS = (
    *("08:00:2b:01:02:03", "08-00-2B-01-02-03", "08002b:010203", "08002b-010203", "0800.2b01.0203", "0800-2b01-0203"),
    *(
        "08002b010203",
        "8:0:2b:1:2:3",
        " 08:00:2b:01:02:03 ",
        "08:00:2b:01:02",
        "08:00:2b:01:02:03:04",
        "08:00:2b:01:02:100",
    ),
    *("08:00:2b:01:02:0g", "", "x", "08002b01020", "08:00-2b:01:02:03", "008:00:2b:01:02:03"),
)

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
    ("make_time", Type.INTEGER): st.integers(-1, 61).map(str),
    ("make_time", Type.DOUBLE): st.sampled_from(["0", "59.999", "60", "1.5", "-1", "61"]),
    ("set_masklen", Type.INTEGER): st.integers(-2, 130).map(str),
    ("text_array_to_time_array", Type.TEXT_ARRAY): st.lists(st.sampled_from(TIME_TEXTS), max_size=2).map(
        literal_of_texts
    ),
    ("text_to_time", Type.TEXT): st.sampled_from(TIME_TEXTS),
    ("text_to_uuid", Type.TEXT): st.sampled_from(UUID_TEXTS),
    **{(f"text_to_{kind}", Type.TEXT): st.sampled_from(ADDRESS_TEXTS) for kind in ("inet", "cidr")},
    ("text_to_macaddr", Type.TEXT): st.sampled_from(MAC_TEXTS),
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
