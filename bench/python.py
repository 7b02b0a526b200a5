"""The bench of Python: derivations in Python beside the same in SQL, end to end without Spark.

A first derivation passes documents through; a second keeps the balance of each account, in `self.state` and in a table.
In Python, each is measured with models of pydantic and with structs of msgspec, and the first with `@arrow`. Rounds of
all alternate, and the best of each counts.

Peers derive the balances from the same documents, of 997 accounts and of 10,000, because the work of some peers depends
on the number of documents of an account. All are warm: an earlier round has started processes and loaded classes. All
end with a committed state and output.

- Ours: one shard, so `flowctl` and the process of the module use a processor each. Input are ingested documents: texts,
  and columns of keys and times. The method is called for each document, in order. A segment (Parquet) and the state
  (SQLite) are committed together, and synced. Documents are validated, and combined per key and tick.
- `stateful_map` of bytewax: one worker, because two are no faster. Input are JSON Lines, which `orjson` parses. The
  function is called for each document, in order. The output is JSON Lines, synced every 1,000 lines, and the state is
  snapshotted to SQLite every 10 s and at the end; "no recovery" is without snapshots.
- `applyInPandasWithState` of PySpark: all processors, and one micro-batch. Input are JSON Lines, which Spark parses.
  The function is called for each key, and sums a column with pandas; Spark may reorder documents. The output is
  Parquet, and the checkpoint has the state store; neither is synced.

The exit code is 1 if a ratio is below its floor.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson

from bench import peers
from bench.transfers import Transfers
from bench.typescript import best, end_to_end, transfers
from derive.catalog import load
from derive.protocol.specs import CatalogSpec
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

FLOORS = {("pass", "python"): 0.5, ("pass", "structs"): 0.5, ("pass", "arrow"): 1.5, ("balance", "structs"): 0.25}

PEER_FLOORS = {("structs", "Spark alone"): 3.0}
"""Least ratio of the rate of our balances to the rate of a peer, by the models of documents and the peer."""

PEERS = (*peers.ALL, replace(peers.BYTEWAX, name="no recovery", arguments=("--forgetful",)))

SENDERS = {"balance": 997, "balances": 10_000}
"""Number of accounts of each derivation of balances: an account has 200 of 200,000 transfers, or 20."""

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
  b/many: *transfers
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
  b/pass-structs:
    <<: *transfers
    derive:
      using: {python: {module: pass_structs.py, models: msgspec}}
      transforms: [{name: transfers, source: b/in, shuffle: any}]
  b/pass-arrow:
    <<: *transfers
    derive:
      using: {python: {module: pass_arrow.py}}
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
  b/balance-structs:
    <<: *transfers
    derive:
      using: {python: {module: balance_structs.py, models: msgspec}}
      transforms: [{name: transfers, source: b/in, shuffle: {key: [/sender]}}]
  b/balances-structs:
    <<: *transfers
    derive:
      using: {python: {module: balances_structs.py, models: msgspec}}
      transforms: [{name: transfers, source: b/many, shuffle: {key: [/sender]}}]
"""
PASS_THROUGH = """
from typing import Any

from b.pass_python import IDerivation, Request


class Derivation(IDerivation):
    def transfers(self, read: Request.ReadFromTransfers) -> Any:
        return [read.doc]
"""
ARROW = """
import pyarrow
from b.pass_arrow import IDerivation, arrow


class Derivation(IDerivation):
    @arrow
    def transfers(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        return batch
"""
BALANCE = """
from b.balance_python import Document, IDerivation, Request


class Derivation(IDerivation):
    def transfers(self, read: Request.ReadFromTransfers) -> list[Document]:
        doc, values = read.doc, self.state
        values["sum"] = total = values.get("sum", 0) + doc.amount
        return [Document(id=doc.id, sender=doc.sender, recipient=doc.recipient, amount=total, at=doc.at)]

    def reset(self) -> None:
        pass  # there is no other state, so the process serves the next round, too
"""


def write_catalog(folder: Path) -> CatalogSpec:
    """Write the catalog and its modules."""
    (folder / "flow.yaml").write_text(CATALOG)
    for name, text in (("pass_through", PASS_THROUGH), ("pass_arrow", ARROW), ("balance", BALANCE)):
        (folder / f"{name}.py").write_text(text)
    for name, text in (("pass_structs", PASS_THROUGH), ("balance_structs", BALANCE)):
        (folder / f"{name}.py").write_text(text.replace("_python", "_structs"))
    (folder / "balances_structs.py").write_text(BALANCE.replace("balance_python", "balances_structs"))
    return load(folder / "flow.yaml")


def measure(folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Return the best seconds of each derivation."""
    catalog = write_catalog(folder)
    data = folder / "data"
    store = Store(data, durable=False)
    for source, what in (("b/in", "balance"), ("b/many", "balances")):
        lines = [orjson.dumps(document) for document in transfers(count, SENDERS[what])]
        Ingestion(store, catalog.collections[source]).load("bench", enumerate(lines, start=1))
    store.close()
    names = [f"b/{task}-{way}" for task in ("pass", "balance") for way in ("sql", "python", "structs")]
    names += ["b/pass-arrow", "b/balances-structs"]
    fresh = iter(range(len(names) * rounds))

    def timed(task: str) -> float:
        copy = folder / f"data-{next(fresh)}"
        subprocess.run(["cp", "-r", data, copy], check=True)
        seconds = end_to_end(catalog, copy, task, durable=True)
        subprocess.run(["rm", "-r", copy], check=True)
        return seconds

    time.sleep(1.1)  # the tick of the last document ends
    return best(rounds, {name: partial(timed, name) for name in names})


def measure_peers(folder: Path, count: int, rounds: int) -> dict[tuple[str, str], float]:
    """Return the seconds of each installed peer's best round of balances, by the derivation and the peer."""
    seconds = {}
    for what, senders in SENDERS.items():
        (folder / what).mkdir()
        given = Transfers(count, folder / what)
        given.lines.write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in transfers(count, senders)))
        for peer in PEERS:
            if peer.module in {one.module for one in peers.installed()}:
                elapsed, documents = peer.run("bench/balance", given, rounds).output.split()
                if int(documents) != count:
                    raise SystemExit(f"{peer.name} wrote {documents} documents, and not {count}")
                seconds[what, peer.name] = float(elapsed)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="beside bytewax and Spark")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flowctl-bench-") as name:
        seconds = measure(Path(name), options.documents, options.rounds)
        others = measure_peers(Path(name), options.documents, options.rounds) if options.peers else {}
    slow = False
    print(f"{'derivation':12}{'way':10}{'documents/s':>14}{'beside':>14}{'ratio':>8}{'floor':>8}")
    for name, ours in seconds.items():
        what, way = name.removeprefix("b/").split("-")
        sql = seconds.get(f"b/{what}-sql")
        beside = [("sql", sql, FLOORS.get((what, way), 0.0))] if sql else []
        if way != "sql":
            own = [(peer, theirs) for (balances, peer), theirs in others.items() if balances == what]
            beside += [(peer, theirs, PEER_FLOORS.get((way, peer), 0.0)) for peer, theirs in own]
        for other, theirs, floor in beside:
            slow = slow or theirs / ours < floor
            rate = f"{options.documents / ours:14,.0f}"
            print(f"{what:12}{way:10}{rate}{other:>14}{theirs / ours:8.2f}{floor:8.2f}")
    for text in peers.missing() if options.peers else ():
        print(text)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
