"""Cold runs: seconds of whole processes, from their start to their end.

Compared are `flowctl run --until-idle` over ingested transfers, peers, and the hand-written loop before and after them,
each in a process of its own. Medians count where there are several rounds. Files are in the page cache, and Spark's
classes are archived (`flowctl prepare`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from bench import loop, peers
from bench.process import flowctl, module, run
from bench.report import Column, Report, Value
from bench.transfers import CATALOG, Transfers
from derive.storage.store import Store

CEILINGS: dict[tuple[str, int], tuple[float, str]] = {
    ("acmeBank/last-large-send", 1_000): (1.5, "s"),
    ("acmeBank/first-send", 1_000): (1.5, "s"),
    ("acmeBank/last-large-send", 1_000_000): (2.5, "×"),
    ("acmeBank/first-send", 1_000_000): (1.5, "×"),
}
"""Ceilings by derivation and number of transfers: seconds, or multiples of the loop's time."""

_OFTEN = 100_000
"""Maximum number of transfers for which there are three rounds."""


def measure(report: Report, sizes: list[Transfers], tasks: list[str], others: Sequence[peers.Peer]) -> None:
    """Print the seconds of all derivations that peers implement, too."""
    columns = [Column("flowctl s"), Column("loop s"), Column("ratio", width=8), Column("at most", width=9)]
    columns += [Column(f"{peer.name} s", width=14) for peer in others]
    report.begin(
        "cold",
        columns,
        about="From cold: seconds of a process; ratios are ours to the loop's, so less than 1 is faster",
    )
    for transfers in sizes:
        for task in [name for name in tasks if name in peers.TASKS]:
            _report(report, transfers, task, peers.fit_for(others, task, transfers))


def _report(report: Report, transfers: Transfers, task: str, others: Sequence[peers.Peer]) -> None:
    """Print the row of a derivation."""
    seconds = _seconds(transfers, task, others)
    ours, theirs = seconds["flowctl"], seconds["loop"]
    most, unit = CEILINGS.get((task, transfers.count), (None, ""))
    values: dict[str, Value] = {f"{name} s": taken for name, taken in seconds.items()}
    values |= {"ratio": ours / theirs, "at most": None if most is None else f"{most} {unit}"}
    reached = ours if unit == "s" else ours / theirs
    miss = f"{reached:.2f} {unit}, not {most} {unit}" if most is not None and reached > most else None
    report.row(transfers.count, task.partition("/")[2], values, miss=miss)


def _seconds(transfers: Transfers, task: str, others: Sequence[peers.Peer]) -> dict[str, float]:
    """Return the median seconds by name."""
    ways: dict[str, Callable[[], tuple[float, int]]] = {
        "loop": partial(_loop, transfers, task),
        "flowctl": partial(_ours, transfers, task),
    }
    ways |= {peer.name: partial(_peer, peer, transfers, task) for peer in others}
    rounds = 3 if transfers.count <= _OFTEN else 1
    taken: dict[str, list[float]] = {name: [] for name in ways}
    documents: dict[str, int] = {}
    for name in [*list(ways) * rounds, "loop"]:
        seconds, documents[name] = ways[name]()
        taken[name].append(seconds)
    _compare(task, documents)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def _compare(task: str, documents: dict[str, int]) -> None:
    """Check that all have published the same number of documents.

    Raises:
        SystemExit: the numbers differ, so the times cannot be compared.
    """
    ours, loops = documents["flowctl"], documents["loop"]
    combined = task == "acmeBank/last-large-send" and 0 < ours <= loops  # combined per sender and second
    if any(count != loops for name, count in documents.items() if not (combined and name == "flowctl")):
        raise SystemExit(f"{task} is not the same for all: {documents}")


def _loop(transfers: Transfers, task: str) -> tuple[float, int]:
    with transfers.scratch() as folder:
        ended = run(module("bench.loop", task, str(transfers.lines), str(folder)))
        with loop.output_of(task, folder).open("rb") as file:
            return ended.seconds, sum(1 for _ in file)


def _ours(transfers: Transfers, task: str) -> tuple[float, int]:
    with transfers.ingested() as data:
        where = ["--source", str(CATALOG), "--data", str(data)]
        ended = run(flowctl("run", *where, "--until-idle", "--task", task))
        with closing(Store(data, reading=True)) as store:
            known = store.collection(task)
            return ended.seconds, known.documents if known else 0


def _peer(peer: peers.Peer, transfers: Transfers, task: str) -> tuple[float, int]:
    ended = peer.run(task, transfers)
    return ended.seconds, int(ended.output.split()[1])
