"""Peers: other software for some derivations, and the durability of each.

Each peer is a process of its own that reads the same JSON Lines. A peer whose package is not installed is skipped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from bench.process import ROOT, Ended, module, run
from bench.transfers import Transfers

TASKS = ("acmeBank/last-large-send", "acmeBank/first-send")
"""The derivations of AcmeBank that peers implement."""

MOST = 1_000_000
"""Maximum number of transfers for peers: with ten times as many, bytewax fills the memory with its state."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer.

    Attributes:
        name: name in tables.
        package: its distribution package.
        module: the module of the bench that runs it.
        durability: its state after a crash, in a sentence or two.
        arguments: further arguments of the module.
    """

    name: str
    package: str
    module: str
    durability: str
    arguments: tuple[str, ...] = ()

    def run(self, task: str, transfers: Transfers, rounds: int = 1) -> Ended:
        """Run a derivation in a process of its own, which prints the seconds of its fastest round and its documents."""
        with transfers.scratch() as folder:
            arguments = (task, str(transfers.lines), str(folder), "--rounds", str(rounds), *self.arguments)
            return run(module(self.module, *arguments))


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
ALL = (BYTEWAX, SPARK)

_OURS = (
    "flowctl: documents, tables and positions are committed together and synced; a crash loses the transaction at work,"
    " which is done again, and nobody sees anything twice. Documents are validated, ordered by time, and combined per"
    " key and second."
)
_LOOPS = "loop: one transaction, synced at its end; a crash loses everything, and it cannot go on where it stopped."


def durability(others: Sequence[Peer]) -> list[str]:
    """Return sentences on the durability of each peer."""
    return [_OURS, _LOOPS, *(f"{peer.name} {version(peer.package)}: {peer.durability}" for peer in others)]


@cache
def installed() -> tuple[Peer, ...]:
    """Return the installed peers whose code this Python can import."""
    return tuple(peer for peer in ALL if _loads(peer))


def _loads(peer: Peer) -> bool:
    command = [sys.executable, "-c", f"import {peer.module}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def fit_for(others: Sequence[Peer], task: str, transfers: Transfers) -> Sequence[Peer]:
    """Return the peers that implement a derivation and can process this many transfers."""
    return others if task in TASKS and transfers.count <= MOST else ()


def missing() -> list[str]:
    """Return notes on peers that are not installed."""
    return [
        f"{peer.name} is omitted: '{peer.package}' is missing, or does not support this Python (pip install '.[bench]')"
        for peer in ALL
        if peer not in installed()
    ]
