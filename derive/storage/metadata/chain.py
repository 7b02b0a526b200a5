"""Chains: the objects that hold the state of a shard, if the state travels between machines.

A link is a part of an object with pages of a SQLite database (`derive/shard/state_pages.py`). The links of a chain,
applied in order to an empty file, give the state of the shard at its last commit. A transaction appends the pages that
it has changed, or also begins a new chain with a snapshot: all pages of the state with which the transaction began.

Objects are written once, and their names are never reused. So an object is part of a state if and only if a row of the
table `chain` names it.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from typing_extensions import override

from derive.storage.metadata.transaction import Transaction, insert_rows
from derive.storage.segments.partition import own_path

MOST_LINKS, FEW_LINKS = 256, 16
"""Number of links after a snapshot from which the next transaction takes another snapshot: in any case, and if the
links together are as large as the snapshot."""


class Link(NamedTuple):
    """A part of an object with pages of a state database: a tuple, because the start of a task reads very many.

    Attributes:
        path: path of the object.
        start: offset of the part in the object, bytes.
        bytes: size of the part.
        digest: SHA-256 of the part, in hexadecimal digits.
        is_snapshot: whether the part belongs to a snapshot, with which a chain begins.
    """

    path: str
    start: int
    bytes: int
    digest: str
    is_snapshot: bool = False

    def to_json(self) -> list[Any]:
        """Return the link as a JSON array."""
        return list(self)

    @staticmethod
    def from_json(value: Sequence[Any]) -> Link:
        """Return the link that `to_json` described."""
        return Link(*value)


CHAINS = "chains"
"""Folder of the objects of all tasks."""

Chain: TypeAlias = tuple[Link, ...]
"""Links in order; empty for a state that does not travel."""


def chains_folder(task: str) -> str:
    """Return the folder of the objects of a task's shards."""
    return own_path(CHAINS, task)


def epoch_of_object(path: str) -> int | None:
    """Return the epoch in whose run an object was written; None for another file.

    >>> epoch_of_object("chains/shop/totals@/7-6f1c.3-0.0")
    7
    """
    epoch = path.rpartition("/")[2].partition("-")[0]
    return int(epoch) if epoch.isdecimal() else None


class PackedChains(Mapping[int, Chain]):
    """Chains of many shards in a plan: a worker opens the chains of its own shards.

    Args:
        chains: the chains, by shard number.
    """

    def __init__(self, chains: Mapping[int, Chain]) -> None:
        self._packed = {
            shard: zlib.compress(pickle.dumps([link.to_json() for link in chain]), 1) for shard, chain in chains.items()
        }

    @override
    def __getitem__(self, shard: int) -> Chain:
        return tuple(map(Link.from_json, pickle.loads(zlib.decompress(self._packed[shard]))))

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._packed)

    @override
    def __len__(self) -> int:
        return len(self._packed)


def identity_of(chain: Chain) -> str:
    """Return the identity of a state; chains with equal links are of one state."""
    names = "\n".join(f"{link.path} {link.start} {link.digest}" for link in chain)
    return hashlib.sha256(names.encode()).hexdigest()[:32]


def extended(chain: Chain, links: Chain) -> Chain:
    """Return a chain after a transaction.

    Args:
        chain: the chain before the transaction.
        links: the links of the transaction; empty if its state does not travel.
    """
    return chain + links if links and not links[0].is_snapshot else links


@dataclass(frozen=True, slots=True)
class ChainMove:
    """The change of a shard's chain by a transaction.

    Attributes:
        shard: number of the shard.
        position: number of the first links that stay; 0 to end the present chain.
        links: the links that follow; none if the state travels no longer.
    """

    shard: int
    position: int
    links: Chain


class ObjectReferences:
    """The number of links to each object of a task's chains; shards of one attempt share objects.

    Args:
        chains: the chains, by shard number.
    """

    def __init__(self, chains: Mapping[int, Chain]) -> None:
        self._counts = Counter(link.path for chain in chains.values() for link in chain)

    def move(self, before: Mapping[int, Chain], moves: Sequence[ChainMove]) -> list[str]:
        """Apply the moves of a commit, and return the paths of the objects that no chain names any longer.

        Args:
            before: the chains before the moves.
            moves: the moves.
        """
        for move in moves:
            self._counts.update(link.path for link in move.links)
        ended = [link.path for move in moves for link in before.get(move.shard, ())[move.position :]]
        self._counts.subtract(ended)
        unnamed = sorted(path for path in set(ended) if not self._counts[path])
        for path in unnamed:
            del self._counts[path]
        return unnamed


def needs_snapshot(chain: Chain) -> bool:
    """Return whether the next transaction should take a snapshot, because the other links outgrow the present one."""
    links = [link for link in chain if not link.is_snapshot]
    if len(links) < FEW_LINKS:
        return False
    size = sum(link.bytes for link in chain if link.is_snapshot)
    return len(links) >= MOST_LINKS or sum(link.bytes for link in links) >= size


def paths_of(chains: Iterable[Chain]) -> set[str]:
    """Return the paths of the objects of chains."""
    return {link.path for chain in chains for link in chain}


def read_chains(db: Transaction, task: str) -> dict[int, Chain]:
    """Return the chain of each shard of a task whose state travels, by the shard's number."""
    rows = db.execute(
        "SELECT shard, path, start, bytes, digest, is_snapshot FROM chain WHERE task = ? ORDER BY shard, position",
        (task,),
    )
    return {shard: tuple([_link(*row) for row in links]) for shard, links in groupby(rows, key=itemgetter(0))}


def _link(_: int, path: str, start: int, size: int, digest: str, is_snapshot: int) -> Link:
    return Link(path, start, size, digest, bool(is_snapshot))


def move_chains(db: Transaction, task: str, moves: Sequence[ChainMove]) -> None:
    """Move chains of a task, in the write transaction of its commit."""
    restarted = [(task, move.shard) for move in moves if not move.position]
    if restarted:
        db.executemany("DELETE FROM chain WHERE task = ? AND shard = ?", restarted)
    rows = [
        (task, move.shard, position, link.path, link.start, link.bytes, link.digest, int(link.is_snapshot))
        for move in moves
        for position, link in enumerate(move.links, start=move.position)
    ]
    insert_rows(db, "chain", rows)


def replace_chains(db: Transaction, task: str, chains: Mapping[int, Chain]) -> None:
    """Replace the chains of all shards of a task, in a write transaction."""
    db.execute("DELETE FROM chain WHERE task = ?", (task,))
    move_chains(db, task, [ChainMove(shard, 0, chain) for shard, chain in chains.items()])


def give_chains(db: Transaction, task: str, new_task: str) -> None:
    """Replace the chains of a task by the chains of another task, in a write transaction."""
    replace_chains(db, new_task, read_chains(db, task))
    replace_chains(db, task, {})


def object_paths(db: Transaction) -> list[str]:
    """Return the paths of the objects of all chains."""
    return [str(path) for (path,) in db.execute("SELECT DISTINCT path FROM chain ORDER BY path")]
