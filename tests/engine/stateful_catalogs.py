"""Catalogs of derivations that keep state, whose documents tell by which lambda they were derived, and after how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEAD = """
collections:
  a/numbers:
    schema: {type: object, required: [id, n], properties: {id: {type: integer}, n: {type: integer}}}
    key: [/id]
"""
DERIVED = """
  a/NAME:
    schema:
      type: object
      required: [n]
      reduce: {strategy: merge}
      properties: {n: {type: integer}, OTHER: {}, times: {type: integer, reduce: {strategy: sum}}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE t (n INTEGER PRIMARY KEY, times INTEGER);"]}}
      shards: {disable: DISABLED}
      transforms:
        - name: from
          source: a/SOURCE
          shuffle: {key: [/n]}
          lambda: |
            INSERT INTO t VALUES ($n, 1) ON CONFLICT DO UPDATE SET times = times + 1;
            SELECT $n + ADDED AS n, times FROM t WHERE n = $n AND $n < 900;
"""


@dataclass(frozen=True)
class Derived:
    """How one collection is derived."""

    source: str
    added: int
    other: str = "other"
    is_disabled: bool = False


def text_of(defined: Mapping[str, Derived]) -> str:
    """A catalog; what would be read and is not derived is read from where all comes from."""
    text = HEAD
    for name, one in defined.items():
        source = one.source if one.source in defined else "numbers"
        parts = {"NAME": name, "SOURCE": source, "ADDED": str(100 + one.added), "OTHER": one.other}
        part = DERIVED.replace("DISABLED", str(one.is_disabled).lower())
        for old, new in parts.items():
            part = part.replace(old, new)
        text += part
    return text
