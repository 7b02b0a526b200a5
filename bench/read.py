"""Cold reduced reads: `flowctl collections read --reduce`, beside Spark alone on the same facts.

Each fact is one payment of an account; reduced, there is a sum per account. Spark alone reads JSON Lines, groups and
sums, and writes JSON Lines. Both are processes of their own, timed from start to end; flowctl runs before and after
Spark.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import orjson

from bench import peers
from bench.process import flowctl, run
from bench.report import Column, Report, Value
from bench.transfers import Transfers

NAME = "bench/spending"
ROWS = [5_000, 1_000_000]
CEILING, FEW = 1.0, 5_000
"""Maximum seconds for up to FEW rows; larger reads must be faster than Spark alone."""

CATALOG = """\
collections:
  bench/spending:
    key: [/account]
    schema:
      type: object
      required: [account]
      reduce: { strategy: merge }
      properties:
        account: { type: string }
        transfers: { type: integer, reduce: { strategy: sum } }
        spent: { type: number, reduce: { strategy: sum } }
"""


def measure(report: Report, folder: Path, accounts: int, rows: list[int]) -> None:
    """Print the seconds of both."""
    columns = [
        Column("flowctl s"),
        Column("Spark alone s", width=14),
        Column("ratio", width=8),
        Column("at most", width=9),
    ]
    about = "Reading reduced, from cold: seconds of a process; ratios are ours to Spark's, so less than 1 is faster"
    report.begin("read", columns, about=about)
    for count in rows:
        facts = _facts(folder / f"spending-{count}", count, accounts)
        first, keys = _ours(facts)
        ended = peers.SPARK.run(NAME, facts)
        second, _ = _ours(facts)
        if keys != int(ended.output.split()[1]):
            raise SystemExit(f"{keys} accounts are read, and Spark alone has {ended.output.split()[1]}")
        _report(report, count, statistics.mean([first, second]), ended.seconds)


def _report(report: Report, count: int, ours: float, spark: float) -> None:
    in_seconds = count <= FEW
    is_missed = ours > CEILING if in_seconds else ours > spark
    most = f"{CEILING} s" if in_seconds else "1.0 ×"
    values: dict[str, Value] = {"flowctl s": ours, "Spark alone s": spark, "ratio": ours / spark, "at most": most}
    report.row(count, "read --reduce", values, miss=f"{ours:.2f} s, not {most}" if is_missed else None)


def _facts(folder: Path, count: int, accounts: int) -> Transfers:
    """Write facts as JSON Lines, and ingest them into a data folder."""
    folder.mkdir()
    (folder / "flow.yaml").write_text(CATALOG)
    facts = Transfers(count, folder)
    with facts.lines.open("wb") as file:
        for number in range(count):
            spent = {"account": f"account-{number * 7_919 % accounts:06d}", "transfers": 1, "spent": number % 1_000 / 4}
            file.write(orjson.dumps(spent) + b"\n")
    run(flowctl("ingest", *_where(facts), "--collection", NAME, str(facts.lines)))
    return facts


def _ours(facts: Transfers) -> tuple[float, int]:
    with facts.scratch() as folder:
        output = folder / "output.jsonl"
        ended = run(flowctl("collections", "read", *_where(facts), "--collection", NAME, "--reduce"), output)
        with output.open("rb") as file:
            return ended.seconds, sum(1 for _ in file)


def _where(facts: Transfers) -> list[str]:
    return ["--source", str(facts.folder / "flow.yaml"), "--data", str(facts.data)]
