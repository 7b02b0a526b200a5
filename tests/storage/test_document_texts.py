"""Documents as columns of JSON text."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.exact import dump_exact
from derive.errors import DocumentError
from derive.storage.segments.texts import parse_texts, write_texts

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
# What would look like the border between two documents, if texts were not escaped.
BORDERS = st.sampled_from(["\n", ",\n,", '",\n,"', "\\n", "\r\n"])


@given(st.lists(st.dictionaries(st.text() | BORDERS, VALUES | BORDERS, max_size=3), max_size=6))
def test_documents_are_written_one_by_one_and_read_back(documents: list[dict[str, object]]) -> None:
    column = write_texts(documents)
    column.validate(full=True)

    assert column.to_pylist() == [dump_exact(each).decode() for each in documents]
    assert parse_texts(column) == documents


def test_a_column_that_is_too_large_is_refused() -> None:
    assert write_texts([{"a": "12345"}], most_bytes=20).to_pylist() == ['{"a":"12345"}']
    with pytest.raises(DocumentError, match="3 documents that belong together take more than 2 GiB"):
        write_texts([{"a": "12345"}] * 3, most_bytes=20)


def test_a_document_that_is_too_deep_is_refused() -> None:
    deepest = orjson.loads('{"a":' * 250 + "1" + "}" * 250)

    assert parse_texts(write_texts([deepest])) == [deepest]
    with pytest.raises(DocumentError, match="nested more than 250 levels deep"):
        write_texts([{}, {"a": deepest}])
