"""A process that materializes numbers into files, from where the endpoint is up to a last one, until it is fenced off."""

from __future__ import annotations

from pathlib import Path

from connectors.kit import Binding, Field, Materialization, Opening, SourceCollection, StoredRows
from connectors.materialize_files import FilesConnector
from derive.errors import FencedError

STEP = 3
"""Numbers in a transaction."""

KEY = Field("id", "/id", ("integer",), must_exist=True, is_key=True)
DOCUMENT = Field("flow_document", "", ("object",))
COLLECTION = SourceCollection("a/b", ("/id",), {"id": KEY, "flow_document": DOCUMENT})


def materialization(root: Path) -> Materialization:
    """Two folders that have the same rows."""
    bindings = [
        Binding({"path": path, "format": "jsonl"}, (path,), COLLECTION, (KEY,), (), "flow_document", {}, True)
        for path in ("left", "right")
    ]
    return Materialization("a/m", {"path": str(root)}, tuple(bindings))


def write(root: Path, last: int) -> None:
    """Write numbers from the checkpoint on."""
    session = FilesConnector().open(Opening(materialization(root), "v1"))
    done = int(session.checkpoint or b"0")
    try:
        while done < last:
            numbers = range(done, done + STEP)
            rows = StoredRows(
                key_columns=[numbers],
                value_columns=[],
                documents=[b'{"id":%d}' % number for number in numbers],
                exists=[False] * STEP,
                deleted=[False] * STEP,
            )
            done += STEP
            session.prepare(b"%d" % done)
            session.store(0, rows)
            session.store(1, rows)
            session.commit()
    except FencedError:
        pass
    finally:
        session.close()
