"""A folder of files that collections are materialized into, and what somebody reads there."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from raw_client import DOCUMENT, Document, Key, key_of
from subject import Subject

from connectors.materialize_files import FilesConnector


def read_parquet(path: Path) -> Iterator[Document]:
    for text in pq.read_table(path).column(DOCUMENT).to_pylist():
        yield json.loads(text)


def read_json_lines(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)


def read_csv(path: Path) -> Iterator[Document]:
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            yield json.loads(row[DOCUMENT])


READERS: dict[str, Callable[[Path], Iterator[Document]]] = {
    "parquet": read_parquet,
    "jsonl": read_json_lines,
    "csv": read_csv,
}


def files(folder: Path, kind: str) -> Subject:
    """Files of one format, of which the last row of a key counts."""

    def resource(table: str, delta: bool) -> Any:
        return {"path": table, "format": kind} | ({"delta_updates": True} if delta else {})

    def rows(table: str) -> dict[Key, Document]:
        paths = sorted((folder / "out" / table).glob(f"*.{kind}"))
        return {key_of(document): document for path in paths for document in READERS[kind](path)}

    wrong: tuple[Any, ...] = ({}, {"path": ""}, {"path": 1})
    return Subject(
        FilesConnector(), {"path": str(folder / "out")}, resource, rows, loads=False, deletes=False, wrong=wrong
    )
