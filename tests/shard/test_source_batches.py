"""Source documents that lambdas take as text are parsed when somebody asks for one, and not before."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connectors.derive_typescript.runtime.process import frame_of
from derive.document.exact import parse_exact
from derive.protocol.derive import ReadBatch
from derive.shard.fields import UnparsedDocuments
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.texts import write_texts

VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(st.characters(exclude_categories=["Cs"]))
)
DOCUMENTS = st.lists(st.dictionaries(st.sampled_from(["k", "a", "b"]), VALUES), min_size=1, max_size=8)


@given(DOCUMENTS, st.integers(0, 8), st.integers(1, 8))
def test_a_frame_of_texts_is_a_frame_of_documents(documents: list[dict[str, Any]], begin: int, count: int) -> None:
    size, clocks = len(documents), list(range(len(documents)))
    columns = ([0, *clocks], [0] * (size + 1), [0] * (size + 1), [b""] * (size + 1))
    rows = ReadRows.of(*columns, write_texts([{"k": "another"}, *documents]))
    unparsed = UnparsedDocuments(rows.slice(1))
    part = slice(begin, begin + count)

    of_texts = frame_of(ReadBatch([0] * size, clocks, clocks, unparsed, None, unparsed.written), part, as_columns=True)

    assert of_texts == frame_of(ReadBatch([0] * size, clocks, clocks, documents), part, as_columns=True)
    assert parse_exact(of_texts)["documents"] == json.loads(json.dumps(documents[part]))
    assert list(unparsed) == documents
    assert unparsed[part] == documents[part]
