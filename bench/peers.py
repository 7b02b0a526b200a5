"""Peers: what else a person might take for the filter and the first occurrences, and what each keeps over a crash.

Each is a process of its own that reads the same JSON Lines. One whose package is not there is passed over.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import version

from bench.process import Ended, module, run
from bench.transfers import Transfers

TASKS = ("acmeBank/last-large-send", "acmeBank/first-send")
"""The derivations that peers know."""

MOST = 1_000_000
"""The most transfers that peers are given: with ten times as many, bytewax fills the memory with its state."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Something else.

    Attributes:
        name: what it is called in tables.
        package: the distribution that it comes from.
        module: the module of the bench that runs it.
        durability: what is kept over a crash, in a sentence or two.
    """

    name: str
    package: str
    module: str
    durability: str

    def run(self, task: str, transfers: Transfers, rounds: int = 1) -> Ended:
        """Derive in a process of its own, which says how many seconds its last round took, and what it published."""
        with transfers.scratch() as folder:
            return run(module(self.module, task, str(transfers.lines), str(folder), "--rounds", str(rounds)))


BYTEWAX = Peer(
    "bytewax",
    "bytewax",
    "bench.peer_bytewax",
    "one worker (two are no faster), state in memory. Positions and the keys that have changed are snapshotted to"
    " SQLite every 10 s (its default), so a crash loses up to 10 s of work, which is done again; the output, synced"
    " every 1,000 lines, is cut back to the last snapshot, so its readers may have seen what is published once more.",
)
SPARK = Peer(
    "Spark alone",
    "pyspark",
    "bench.peer_spark",
    "all cores; `filter` and `dropDuplicates` of a DataFrame, written as Parquet by Spark's committer, without fsync."
    " Nothing is kept between runs: a crash loses the run, and new transfers mean that all are read again. Which"
    " transfer of a pair it keeps is not said.",
)
_OURS = (
    "flowctl: documents, tables and positions are committed together and synced; a crash loses the transaction at work,"
    " which is done again, and nobody sees anything twice. Documents are validated, ordered by time, and combined per"
    " key and second."
)
_LOOPS = "loop: one transaction, synced at its end; a crash loses everything, and it cannot go on where it stopped."


def durability() -> list[str]:
    """What each keeps over a crash."""
    return [_OURS, _LOOPS, *(f"{peer.name} {version(peer.package)}: {peer.durability}" for peer in installed())]


def installed() -> list[Peer]:
    """The peers that are there."""
    return [peer for peer in (BYTEWAX, SPARK) if importlib.util.find_spec(peer.package)]


def fit_for(task: str, transfers: Transfers) -> list[Peer]:
    """The peers that are there for a derivation of so many transfers."""
    return installed() if task in TASKS and transfers.count <= MOST else []


def missing() -> list[str]:
    """What there is to say about peers that are not there."""
    return [
        f"{peer.name} is passed over: '{peer.package}' is not installed (pip install -e '.[bench]')"
        for peer in (BYTEWAX, SPARK)
        if not importlib.util.find_spec(peer.package)
    ]
