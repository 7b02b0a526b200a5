"""Explanations: `flowctl why` of single keys among all documents of AcmeBank, from cold.

Each explanation is a process of its own, timed from its start to its end. The start of the process is not counted. It
takes as long as an explanation of an ingested transfer, which imports the same modules and reads one document.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import orjson

from bench.process import Ended, flowctl, run
from bench.report import Column, Report, Value
from bench.transfers import CATALOG, Transfers
from derive.catalog import load
from derive.document.key import show_key
from derive.storage.store import Store
from derive.why.scan import ScanBounds, scan

CEILINGS = {0: 0.5, 2: 1.0}
"""Maximum seconds beside the start of the process for up to a million transfers, by depth."""

_FEW = 1_000_000
_KEYS = 5
_SOURCE = "acmeBank/transfers"


def measure(report: Report, sizes: list[Transfers], tasks: list[str]) -> None:
    """Print the seconds beside the start of the process and the number of replayed documents, medians of some keys."""
    columns = [Column("start s"), *(Column(_seconds(depth)) for depth in CEILINGS), Column("replayed", ",.0f")]
    about = "Explanations, from cold: seconds of a process beside its start; medians of some keys"
    report.begin("why", columns, about=about)
    for transfers in sizes:
        with transfers.ingested() as data:
            run(flowctl("run", *_where(data), "--until-idle"))
            for task in tasks:
                _report(report, transfers.count, data, task)


def _report(report: Report, count: int, data: Path, task: str) -> None:
    source = next(_keys(data, _SOURCE))
    known: dict[str, list[float]] = {}
    for key in _keys(data, task):
        start = _explain(data, _SOURCE, source, 0).seconds
        known.setdefault("start s", []).append(start)
        for depth in CEILINGS:
            ended = _explain(data, task, key, depth)
            known.setdefault(_seconds(depth), []).append(ended.seconds - start)
        known.setdefault("replayed", []).append(orjson.loads(ended.output)["replayed"])
    values: dict[str, Value] = {name: statistics.median(numbers) for name, numbers in known.items()}
    seconds = {depth: statistics.median(known[_seconds(depth)]) for depth in CEILINGS}
    misses = [
        f"{seconds[depth]:.2f} s at depth {depth}, not {ceiling} s"
        for depth, ceiling in CEILINGS.items()
        if count <= _FEW and seconds[depth] > ceiling
    ]
    report.row(count, task.partition("/")[2], values, miss="; ".join(misses) or None)


def _explain(data: Path, collection: str, key: str, depth: int) -> Ended:
    options = ["--collection", collection, "--key", key, "--depth", str(depth), "-o", "json"]
    return run(flowctl("why", *_where(data), *options))


def _keys(data: Path, collection: str) -> Iterator[str]:
    """Yield keys of documents of the last tenth of a collection's time, so that their histories are long."""
    with closing(Store(data, reading=True)) as store:
        spec = load(CATALOG).collections[collection]
        last = max(segment.clock_max for segment in store.segments(spec))
        first = min(segment.clock_min for segment in store.segments(spec))
        keys = sorted({row.key for row in scan(store, spec, ScanBounds(begin=last - (last - first) // 10))})
    yield from map(show_key, islice(keys, len(keys) // (2 * _KEYS), None, max(1, len(keys) // _KEYS)))


def _where(data: Path) -> list[str]:
    return ["--source", str(CATALOG), "--data", str(data)]


def _seconds(depth: int) -> str:
    return f"depth {depth} s"
