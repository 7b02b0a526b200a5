"""The bench of Python: derivations in Python beside the same in SQL, end to end without Spark.

A first pair passes documents through; a second pair keeps the balance of each account, in `self.state` and in a table.
Rounds of all alternate, and the best of each counts. The exit code is 1 if a ratio is below its floor.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import orjson

from bench.typescript import best, end_to_end, transfers
from derive.catalog import load
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

PASS, BALANCES = 0.5, 0.25

CATALOG = """
collections:
  b/in: &transfers
    schema: &schema
      type: object
      required: [id, sender, recipient, amount, at]
      properties:
        id: {type: integer}
        sender: {type: string}
        recipient: {type: string}
        amount: {type: number}
        at: {type: string}
    key: [/id]
  b/pass-sql:
    <<: *transfers
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: transfers, source: b/in, shuffle: any, lambda: "SELECT $id, $sender, $recipient, $amount, $at;"}
  b/pass-python:
    <<: *transfers
    derive:
      using: {python: {module: pass_through.py}}
      transforms: [{name: transfers, source: b/in, shuffle: any}]
  b/balance-sql:
    <<: *transfers
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE sums (sender TEXT PRIMARY KEY, amount REAL NOT NULL);"]}}
      transforms:
        - name: transfers
          source: b/in
          shuffle: {key: [/sender]}
          lambda: |
            INSERT INTO sums VALUES ($sender, $amount) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount
            RETURNING $id, $sender, $recipient, amount, $at;
  b/balance-python:
    <<: *transfers
    derive:
      using: {python: {module: balance.py}}
      transforms: [{name: transfers, source: b/in, shuffle: {key: [/sender]}}]
"""
PASS_THROUGH = """
from typing import Any

from b.pass_python import IDerivation, Request


class Derivation(IDerivation):
    def transfers(self, read: Request.ReadFromTransfers) -> Any:
        return [read.doc]
"""
BALANCE = """
from b.balance_python import Document, IDerivation, Request


class Derivation(IDerivation):
    def transfers(self, read: Request.ReadFromTransfers) -> list[Document]:
        doc, values = read.doc, self.state
        values["sum"] = total = values.get("sum", 0) + doc.amount
        return [Document(id=doc.id, sender=doc.sender, recipient=doc.recipient, amount=total, at=doc.at)]
"""


def measure(folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Return the best seconds of each derivation."""
    (folder / "flow.yaml").write_text(CATALOG)
    (folder / "pass_through.py").write_text(PASS_THROUGH)
    (folder / "balance.py").write_text(BALANCE)
    catalog = load(folder / "flow.yaml")
    data = folder / "data"
    store = Store(data, durable=False)
    lines = [orjson.dumps(document) for document in transfers(count)]
    Ingestion(store, catalog.collections["b/in"]).load("bench", enumerate(lines, start=1))
    store.close()
    names = ("b/pass-sql", "b/pass-python", "b/balance-sql", "b/balance-python")
    fresh = iter(range(len(names) * rounds))

    def timed(task: str) -> float:
        copy = folder / f"data-{next(fresh)}"
        subprocess.run(["cp", "-r", data, copy], check=True)
        seconds = end_to_end(catalog, copy, task)
        subprocess.run(["rm", "-r", copy], check=True)
        return seconds

    time.sleep(1.1)  # the tick of the last document ends
    return best(rounds, {name: partial(timed, name) for name in names})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flowctl-bench-") as name:
        seconds = measure(Path(name), options.documents, options.rounds)
    slow = False
    print(f"{'derivation':14}{'documents/s':>14}{'Python':>14}{'ratio':>8}{'floor':>8}")
    for what, floor in (("pass", PASS), ("balance", BALANCES)):
        base, ours = seconds[f"b/{what}-sql"], seconds[f"b/{what}-python"]
        slow = slow or base / ours < floor
        rates = f"{options.documents / base:14,.0f}{options.documents / ours:14,.0f}"
        print(f"{what:14}{rates}{base / ours:8.2f}{floor:8.2f}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
