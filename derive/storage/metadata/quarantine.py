"""Quarantines in the metadata database: the documents that are put aside, and the decisions that were made about them.

A quarantine only grows: its entries are written by the transactions of the task. An entry is open until it is retried
or dropped. Each entry is decided about once, also if two processes try at once, because a decision has the entry's
identifier as its key. Decisions belong to a relation, so a task that was reset has no decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import orjson

from derive.protocol.collection import internal_patterns, quarantine_name
from derive.storage.metadata.transaction import Transaction
from derive.time.positions import Segment

Decision: TypeAlias = Literal["retry", "drop"]


@dataclass(frozen=True, slots=True)
class Retried:
    """Retried documents that a transform reads besides its source.

    Attributes:
        frontier: timestamp before which all retried documents are known; None if no process adds documents.
        segments: files of the documents.
    """

    frontier: int | None
    segments: tuple[Segment, ...]


def internal_collections(db: Transaction, task: str) -> list[str]:
    """Return the names of a task's quarantine and of its collections of retried documents, as far as they exist."""
    quarantine, prefix = internal_patterns(task)
    rows = db.execute(
        "SELECT name FROM collection WHERE name = ? OR (name > ? AND name < ?) ORDER BY name",
        (quarantine, prefix, f"{prefix}{chr(0x10FFFF)}"),
    )
    return [str(name) for (name,) in rows.fetchall()]


def open_counts(db: Transaction, task: str) -> dict[str, int]:
    """Return the number of open entries of a task's quarantine, by the state key of the input."""
    counts: dict[str, int] = {}
    name = quarantine_name(task)
    stored: list[Any] = db.execute(
        "SELECT partition, sum(documents) FROM segment WHERE collection = ? GROUP BY partition", (name,)
    ).fetchall()
    decided: list[Any] = db.execute(
        "SELECT input, count(*) FROM decision JOIN collection USING (relation) WHERE name = ? GROUP BY input", (name,)
    ).fetchall()
    for partition, count in stored:
        counts[orjson.loads(partition)[0]] = count
    for key, count in decided:
        counts[key] -= count
    return {key: count for key, count in sorted(counts.items()) if count}


def decided_entries(db: Transaction, task: str) -> set[str]:
    """Return the identifiers of the retried and dropped entries of a task's quarantine."""
    rows = db.execute(
        "SELECT decision.id FROM decision JOIN collection USING (relation) WHERE name = ?", (quarantine_name(task),)
    )
    return {str(identifier) for (identifier,) in rows.fetchall()}


def record_decisions(db: Transaction, task: str, entries: Mapping[str, str], decision: Decision) -> bool:
    """Record decisions about open entries, in a write transaction.

    Args:
        db: the write transaction.
        task: name of the task.
        entries: state key of the input, by the identifier of each entry.
        decision: the decision.

    Returns:
        False if the quarantine was emptied, or another process has decided about one of the entries; the caller then
        ends the transaction without effect.
    """
    relation = db.execute("SELECT relation FROM collection WHERE name = ?", (quarantine_name(task),)).get
    if relation is None or not decided_entries(db, task).isdisjoint(entries):
        return False
    at = db.now()
    db.executemany(
        "INSERT INTO decision (relation, id, input, kind, at) VALUES (?, ?, ?, ?, ?)",
        [(relation, identifier, key, decision, at) for identifier, key in entries.items()],
    )
    return True


def forget_decisions(db: Transaction, name: str) -> None:
    """Delete the decisions about a quarantine, before its history is deleted."""
    db.execute("DELETE FROM decision WHERE relation = (SELECT relation FROM collection WHERE name = ?)", (name,))
