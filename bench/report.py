"""Output of the bench: tables for people, or a JSON object per row, and the missed limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = str | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        form: format specification of its numbers.
        width: width in characters, with the space before it.
    """

    name: str
    form: str = ",.2f"
    width: int = 12

    def cell(self, value: Value) -> str:
        """Return a value as text, padded to the width."""
        text = "" if value is None else value if isinstance(value, str) else format(value, self.form)
        return text.rjust(self.width)


class Report:
    """Prints rows as soon as they are known."""

    def __init__(self, *, as_json: bool) -> None:
        self.missed: list[str] = []
        self._as_json = as_json
        self._table = ""
        self._columns: Sequence[Column] = ()

    def begin(self, table: str, columns: Sequence[Column], *, about: str) -> None:
        """Begin a table.

        Args:
            table: its name, for JSON.
            columns: its columns after the first one, which names the work and the number of documents.
            about: its title.
        """
        self._table, self._columns = table, columns
        self.say(f"\n{about}")
        self.say(" " * 32 + "".join(column.cell(column.name) for column in columns))

    def row(self, documents: int, what: str, values: dict[str, Value], *, miss: str | None = None) -> None:
        """Print a row.

        Args:
            documents: number of documents.
            what: the work done with the documents.
            values: values by name of the column; missing ones stay empty.
            miss: the limit that the row misses, in words.
        """
        name = f"{documents:,} × {what}"
        if miss is not None:
            self.missed.append(f"{name}: {miss}")
        if self._as_json:
            known = {"table": self._table, "documents": documents, "what": what, **values, "missed": miss}
            print(json.dumps(known, ensure_ascii=False), flush=True)
        else:
            cells = "".join(column.cell(values.get(column.name)) for column in self._columns)
            print(f"{name:<32}{cells}{'  missed' if miss else ''}", flush=True)

    def say(self, text: str) -> None:
        """Print a line for people; JSON output leaves it out."""
        if not self._as_json:
            print(text, flush=True)
