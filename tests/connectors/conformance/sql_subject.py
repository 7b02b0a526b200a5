"""What the conformance tests need to know about every SQL connector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from raw_client import DOCUMENT, KEYS, VALUES, Document, Key
from sql_databases import Database
from subject import Subject

from connectors.materialize_sql.column import quote


def subject_of(database: Database, *, holds_nul: bool = True) -> Subject:
    """A subject over an empty database."""

    def rows(table: str) -> dict[Key, Document]:
        return dict(_rows(database, table))

    def resource(table: str, delta: bool) -> Any:
        return {"table": table, "delta_updates": delta}

    wrong: tuple[Any, ...] = ({}, {"no such": "property"}, database.config | {"no such": "property"})
    return Subject(database.connector, database.config, resource, rows, holds_nul=holds_nul, wrong=wrong)


def _rows(database: Database, table: str) -> Iterator[tuple[Key, Document]]:
    names = (*KEYS, DOCUMENT, *VALUES)
    for row in database.query(f"SELECT {', '.join(map(quote, names))} FROM {quote(table)}"):
        values = dict(zip(names, row, strict=True))
        text = values[DOCUMENT]
        document: Document = text if isinstance(text, dict) else json.loads(text)
        for name in ("amount", "flag", "note"):
            assert values[name] == document.get(name)
        yield tuple(values[name] for name in KEYS), document
