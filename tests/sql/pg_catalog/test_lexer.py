"""Tokens of SQL."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from derive.sql.pg_catalog.lexer import Kind, tokens_of


def test_tokens() -> None:
    text = "SELECT a.\"B\"\"c\", 'it''s' || E'\\'', $1::int8, 1.5e3 /* x */ !~* $q$ ' $q$ -- end"
    tokens = [token for token in tokens_of(text) if token.kind is not Kind.SPACE]

    assert [token.text for token in tokens] == [
        *("SELECT", "a", ".", '"B""c"', ",", "'it''s'", "||", "E'\\''", ",", "$1", "::", "int8", ",", "1.5e3", "!~*"),
        "$q$ ' $q$",
    ]
    assert [token.word for token in tokens][:4] == ["select", "a", ".", 'B"c']
    assert {token.word for token in tokens if token.kind is Kind.TEXT} == {""}


@given(st.text(alphabet="ab1 '\"$-/*.:~;\n(", max_size=30))
def test_no_character_is_lost(text: str) -> None:
    assert "".join(token.text for token in tokens_of(text)) == text
