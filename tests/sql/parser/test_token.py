"""Tokens of SQL."""

import pytest

from derive.errors import SqlError
from derive.sql.parser.tokens import TokenKind, tokens_of


def values(text: str) -> list[str]:
    return [token.value for token in tokens_of(text)[:-1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Select "a""B" FROM é', ["select", 'a"B', "from", "é"]),
        ("'it''s' E'a\\n\\x41\\u00e9\\'' $$x$y$$ $t$ $$ $t$", ["it's", "a\nAé'", "x$y", " $$ "]),
        (
            "E'\\303\\251' E'\\xc3\\xa9\\x41\\7' E'\\ud83d\\uDE00\\\\x41' E'\\xF0\\x9f\\230\\200'",
            ["é", "éA\7", "😀\\x41", "😀"],
        ),
        ("'a'\n  'b' -- c\n 'd'", ["abd"]),
        ("1 1.5 .5 1e3 1.e-2 $12", ["1", "1.5", ".5", "1e3", "1.e-2", "12"]),
        (
            "a<=b!=c<>d->>e::f #>> -1 *-2 @>-",
            ["a", "<=", "b", "<>", "c", "<>", "d", "->>", "e", "::", "f", "#>>", "-", "1", "*", "-", "2", "@>-"],
        ),
        ("a/* b /* c */ d */e -- f\n;g", ["a", "e", ";", "g"]),
        ("1--2\n+/*3*/4", ["1", "+", "4"]),
    ],
)
def test_tokens_have_values(text: str, expected: list[str]) -> None:
    assert values(text) == expected


def test_tokens_have_positions() -> None:
    tokens = tokens_of("ab  'c''d' \"e\"")

    assert [(token.kind, token.offset, token.end) for token in tokens] == [
        (TokenKind.WORD, 0, 2),
        (TokenKind.STRING, 4, 10),
        (TokenKind.NAME, 11, 14),
        (TokenKind.END, 14, 14),
    ]


@pytest.mark.parametrize(
    ("text", "sqlstate", "offset", "message"),
    [
        ("a 'b", "42601", 2, 'unterminated quoted string at or near "\'b"'),
        ('a "b', "42601", 2, 'unterminated quoted identifier at or near ""b"'),
        ("a /* b", "42601", 2, 'unterminated /* comment at or near "/* b"'),
        ("a $x$ b", "42601", 2, 'unterminated dollar-quoted string at or near "$x$ b"'),
        ('a ""', "42601", 2, 'zero-length delimited identifier at or near """"'),
        ("a 12b", "42601", 2, 'trailing junk after numeric literal at or near "12b"'),
        ("a E'\\u0000'", "22025", 4, "invalid Unicode escape value"),
        ("a E'\\ud83d'", "42601", 4, "invalid Unicode surrogate pair"),
        ("a E'\\u00g0'", "22025", 4, "invalid Unicode escape"),
        ("a E'x\\xc3'", "22021", 4, 'invalid byte sequence for encoding "UTF8": 0xc3'),
        ("a E'\\000'", "22021", 4, 'invalid byte sequence for encoding "UTF8": 0x00'),
        ("a \\b", "42601", 2, 'syntax error at or near "\\"'),
        ("a B'1'", "0A000", 2, "bit strings are not supported"),
    ],
)
def test_invalid_tokens_are_refused(text: str, sqlstate: str, offset: int, message: str) -> None:
    with pytest.raises(SqlError) as caught:
        tokens_of(text)

    assert (caught.value.sqlstate, caught.value.offset, caught.value.message) == (sqlstate, offset, message)
