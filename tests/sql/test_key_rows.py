"""The rows of keys in memory and in a database: equal answers, and commits that stand although the disk is full."""

from __future__ import annotations

import asyncio
import errno

from hypothesis import given
from hypothesis import strategies as st
from sql_world import Client
from typing_extensions import override

from derive.algebra.types import Row
from derive.sql.coordinator import Coordinator
from derive.sql.transactions.key_index import KeyIndexes
from derive.sql.transactions.key_rows import KeyMemory, KeyRows

KEYS = st.sampled_from([number.to_bytes(2, "big") for number in range(6)])
STEPS = st.lists(st.tuples(st.dictionaries(KEYS, st.tuples(st.integers(0, 3), st.text(max_size=2))), st.lists(KEYS)))


@given(STEPS, st.integers(0, 2_000))
def test_key_rows_equal_a_dict(steps: list[tuple[dict[bytes, Row], list[bytes]]], most_bytes: int) -> None:
    """Law: in memory, in a database, and after the move, a key has the row that was put last and not removed."""
    rows, model = KeyRows(KeyMemory(most_bytes)), dict[bytes, Row]()
    for added, removed in steps:
        rows.remove(removed)
        rows.put(added)
        model = {key: row for key, row in model.items() if key not in removed} | added
        asked = [number.to_bytes(2, "big") for number in range(300)]
        assert rows.of(asked) == model
        assert rows.has_any(asked) is bool(model)


class _FullDisk(KeyMemory):
    """Memory of which the overflow cannot be written while the disk is full."""

    is_full = False

    @property
    @override
    def is_exceeded(self) -> bool:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return False


async def test_durable_commits_stand_without_their_index(coordinator: Coordinator) -> None:
    memory = _FullDisk()
    coordinator.commits.keys = KeyIndexes(coordinator._keyed, coordinator._stored_rows, memory)
    clients = [Client(coordinator) for _ in range(4)]
    await clients[0].script("CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (0)")
    memory.is_full = True

    texts = [f"INSERT INTO t VALUES ({number})" for number in range(4)]
    outcomes = await asyncio.gather(
        *(client.tag(text) for client, text in zip(clients, texts, strict=True)), return_exceptions=True
    )
    stored = {str(row) for (row,) in await clients[0]("TABLE t")}
    assert stored == {"0", *(text[22] for text, tag in zip(texts, outcomes, strict=True) if tag == "INSERT 0 1")}
    assert len(stored) > 1
    memory.is_full = False
    assert [await clients[0].fails(f"INSERT INTO t VALUES ({row})") for row in sorted(stored)] == ["23505"] * len(
        stored
    )
