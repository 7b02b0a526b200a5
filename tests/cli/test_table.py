"""Tables as text: nothing inside a name or a number is folded, whatever the width."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from derive.cli.console import columns_of, fit, lines_of

VALUES = st.none() | st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=50) | st.integers(0, 10**12)
NAMES = ("task", "state", "documents in", "upper", "readers")
ROWS = st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES)), max_size=5)


def text_of(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


@given(ROWS, st.none() | st.integers(1, 250), st.permutations(NAMES[1:]))
def test_tables_show_whole_cells_and_omit_columns_to_fit(
    rows: list[dict[str, Any]], width: int | None, spare: list[str]
) -> None:
    """A row is one line with all its shown cells whole; lines are longer than the terminal only if none can be spared."""
    shown, hidden = fit(columns_of(NAMES, rows, len), width, spare)
    header, *lines = lines_of(shown, len)

    assert sorted([*(column.name for column in shown), *hidden]) == sorted(NAMES)
    assert len(lines) == len(rows)
    for line, row in zip([header, *lines], [dict(zip(NAMES, NAMES, strict=True)), *rows], strict=True):
        assert line.split() == [part for column in shown for part in text_of(row[column.name]).split()]
    if width is None:
        assert hidden == []
    elif len(shown) > 1:
        assert max(map(len, (header, *lines))) <= width


def test_tables_leave_out_the_most_dispensable_columns_first() -> None:
    rows = [{"task": "a/task", "state": "idle", "in": 1234567, "upper": "2026-11-26T14:27:56.000000Z"}]
    columns = columns_of(("task", "state", "in", "upper"), rows, len)

    shown, hidden = fit(columns, 30, ("upper", "in", "state"))

    assert hidden == ["upper"]
    assert lines_of(shown, len) == ["task    state         in", "a/task  idle   1,234,567"]
    assert fit(columns, 60, ("upper", "in", "state")) == (columns, [])
    assert fit(columns, 22, ("upper", "in", "state"))[1] == ["in", "upper"]
