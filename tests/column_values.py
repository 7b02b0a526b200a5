"""Columns of random values, as SQL and connectors publish them: as lists, or as the JSON text of a list."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from connectors.module_kit.published import read_column
from derive.document.columns import Columns
from derive.document.exact import dump_exact

TEXTS = st.text(st.sampled_from('ab,"\\\n\0ä\U0001f600{}[]:'), max_size=4)
INTEGERS = st.integers(-300, 70_000) | st.sampled_from([2**31, 2**63 - 1, -(2**63), -(2**63) + 1, 2**32, -(2**32)])
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1.0, -0.0, 1e22, 5e-324])
WIDE = st.integers(-(1 << 80), 1 << 80)
NESTED = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
KINDS = [TEXTS, INTEGERS, FLOATS, WIDE, NESTED, st.none() | TEXTS, st.booleans(), INTEGERS | FLOATS]


def columns(*names: str, kinds: list[st.SearchStrategy[Any]] = KINDS) -> st.SearchStrategy[Columns]:
    """Columns of some of these properties, at least one."""

    def of(count: int) -> st.SearchStrategy[dict[str, list[Any]]]:
        column = st.sampled_from(kinds).flatmap(lambda kind: st.lists(kind, min_size=count, max_size=count))
        return st.dictionaries(st.sampled_from(names), column, min_size=1)

    def made(values: dict[str, list[Any]], is_text: bool) -> Columns:
        listed = [read_column([dump_exact(column)], len(column)) if is_text else column for column in values.values()]
        return Columns.of(tuple(values), listed)

    return st.builds(made, st.integers(1, 5).flatmap(of), st.booleans())
