"""Rows to store, and some of them."""

from connectors.kit import StoredRows

ROWS = StoredRows(
    key_columns=[["a", "b", "c"], [1, 2, 3]],
    value_columns=[[None, b"{}", 1.5]],
    documents=[b'{"d":1}', b'{"d":2}', b'{"d":3}'],
    exists=[True, False, True],
    deleted=[False, False, True],
)


def test_stored_rows_have_keys_values_and_rows() -> None:
    assert len(ROWS) == 3
    assert ROWS.keys == [("a", 1), ("b", 2), ("c", 3)]
    assert ROWS.values == [(None,), (b"{}",), (1.5,)]
    assert list(ROWS.rows(with_document=False)) == [("a", 1, None), ("b", 2, b"{}"), ("c", 3, 1.5)]
    assert next(ROWS.rows(with_document=True)) == ("a", 1, None, b'{"d":1}')


def test_stored_rows_may_have_keys_only() -> None:
    rows = StoredRows([["a", "b"]], [], [b"{}", b"{}"], [False, False], [False, False])

    assert rows.values == [(), ()]
    assert list(rows.rows(with_document=False)) == [("a",), ("b",)]


def test_stored_rows_are_selected_by_flags() -> None:
    there = ROWS.where(ROWS.exists)

    assert there is not None
    assert there.keys == [("a", 1), ("c", 3)]
    assert (there.documents, there.exists, there.deleted) == ([b'{"d":1}', b'{"d":3}'], [True, True], [False, True])
    assert ROWS.where([False] * 3) is None
    assert ROWS.where([True] * 3) is ROWS
