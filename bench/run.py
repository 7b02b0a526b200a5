"""The bench: AcmeBank beside a hand-written loop and peers, warm and cold, in one run on one machine."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill

from bench import cold, peers, read, warm, why
from bench.report import Report
from bench.transfers import Transfers, generate
from derive.spark.class_archive import is_prepared, prepare

SIZES = [1_000, 100_000, 1_000_000]
PARTS = ["warm", "cold", "read", "why"]


def main() -> int:
    """Run the requested measurements; return exit code 1 if limits are missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transfers", type=int, nargs="+", default=SIZES, metavar="N", help="how many; also 10000000")
    parser.add_argument("--rows", type=int, nargs="+", default=read.ROWS, metavar="N", help="how many are read reduced")
    parser.add_argument("--accounts", type=int, default=50_000)
    parser.add_argument("--every-ms", type=float, default=10.0, help="milliseconds from one transfer to the next")
    parser.add_argument("--task", choices=warm.FLOORS, help="only this one, and what it reads")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="which tables")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="beside bytewax and Spark")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    report = Report(as_json=options.json)
    if not is_prepared():
        prepare()
    with tempfile.TemporaryDirectory(prefix="flowctl-bench-") as name:
        folder = Path(name)
        _measure(report, folder, options)
    for miss in report.missed:
        print(f"missed: {miss}", file=sys.stderr)
    return int(bool(report.missed))


def _measure(report: Report, folder: Path, options: argparse.Namespace) -> None:
    every_ms: float = options.every_ms
    report.say(f"AcmeBank on {os.cpu_count()} cores; transfers between {options.accounts:,} accounts")
    for text in peers.missing() if options.peers else ():
        report.say(text)
    others = peers.installed() if options.peers else ()
    sizes = []
    if {"warm", "cold", "why"} & set(options.only):
        sizes = [generate(folder / str(count), count, options.accounts, every_ms) for count in options.transfers]
    tasks = [options.task] if options.task else list(warm.FLOORS)
    parts: dict[str, Callable[[], None]] = {
        "warm": lambda: _warm(report, sizes, tasks, others),
        "cold": lambda: cold.measure(report, sizes, tasks, others),
        "read": lambda: read.measure(report, folder, options.accounts, options.rows),
        "why": lambda: why.measure(report, sizes, tasks),
    }
    for part in options.only:
        parts[part]()
    report.say("\nData that survives a crash")
    for text in peers.durability(others):
        report.say(fill(text, 120))


def _warm(report: Report, sizes: list[Transfers], tasks: list[str], others: Sequence[peers.Peer]) -> None:
    peak = warm.measure(report, sizes, tasks, others)
    for kind, kib in peak.kib.items():
        report.say(f"peak memory of {kind}: {kib / 1024:,.0f} MiB")


if __name__ == "__main__":
    sys.exit(main())
