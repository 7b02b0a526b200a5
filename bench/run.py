"""The bench: AcmeBank on Spark beside a hand-written loop, in one run on one machine.

The loop is what a person would write without us: one process, orjson and apsw, the same SQL, tables in a file, one
transaction, no validation, no ordering by time but that of the file. Each task runs between two rounds of its loop, so
that what else the machine does falls on both; ratios are ours to the loop's mean. Spark's start is not counted.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import orjson

from derive.catalog import load
from derive.engine.opening import open_run
from derive.engine.transaction import Committed
from derive.protocol.specs import CatalogSpec
from derive.spark.executor import SparkExecutor
from derive.storage.ingest import Ingestion
from derive.storage.inputs.json_lines import json_lines
from derive.storage.store import Store

ROOT = Path(__file__).parent.parent
BANK = ROOT / "examples" / "acmebank"
TASKS = {
    "acmeBank/last-large-send": 0.8,
    "acmeBank/first-send": 0.7,
    "acmeBank/grouped-transfers": 0.4,
    "acmeBank/transfer-outcomes": 0.2,
    "acmeBank/balances": 0.7,
}


class Loop:
    """The hand-written loop: one method per derivation."""

    def __init__(self, lines: Path, folder: Path) -> None:
        self.lines = lines
        self.folder = folder

    def run(self, task: str) -> float:
        """Seconds that one derivation takes."""
        name = task.split("/")[1]
        db = apsw.Connection(str(self.folder / f"{name}.db"))
        db.execute(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-131072; PRAGMA wal_autocheckpoint=0"
        ).fetchall()
        derive: Callable[..., Iterator[Any]] = getattr(self, name.replace("-", "_"))
        begun = time.perf_counter()
        with (self.folder / f"{name}.jsonl").open("wb") as output:
            db.execute("BEGIN")
            for document in derive(db):
                output.write(orjson.dumps(document) + b"\n")
            db.execute("COMMIT")
            output.flush()
            os.fsync(output.fileno())
        seconds = time.perf_counter() - begun
        db.close()
        return seconds

    def _transfers(self) -> Iterator[Any]:
        with self.lines.open("rb") as file:
            for line in file:
                yield orjson.loads(line)

    def last_large_send(self, db: apsw.Connection) -> Iterator[Any]:
        execute = db.cursor().execute
        for each in self._transfers():
            row = (each["id"], each["sender"], each["recipient"], each["amount"])
            for found in execute("SELECT $id, $sender, $recipient, $amount WHERE $amount > 100", row):
                yield dict(zip(("id", "sender", "recipient", "amount"), found, strict=True))

    def first_send(self, db: apsw.Connection) -> Iterator[Any]:
        db.execute(
            "CREATE TABLE seen_pairs (sender TEXT, recipient TEXT, PRIMARY KEY (sender, recipient)) WITHOUT ROWID"
        )
        execute = db.cursor().execute
        sql = (
            "INSERT INTO seen_pairs VALUES ($sender, $recipient) ON CONFLICT DO NOTHING"
            " RETURNING $id, $sender, $recipient, $amount"
        )
        for each in self._transfers():
            for found in execute(sql, (each["sender"], each["recipient"], each["id"], each["amount"])):
                yield dict(zip(("id", "sender", "recipient", "amount"), found, strict=True))

    def grouped_transfers(self, db: apsw.Connection) -> Iterator[Any]:
        db.execute(
            "CREATE TABLE window (sender TEXT, id INTEGER, recipient TEXT, amount REAL, PRIMARY KEY (sender, id))"
            " WITHOUT ROWID"
        )
        execute = db.cursor().execute
        select, insert = (BANK / "enrichAndAddToWindow.sql").read_text().split(";\n\n")
        delayed: deque[tuple[float, str, int]] = deque()

        def expire(now: float) -> None:
            while delayed and delayed[0][0] < now:
                _, sender, number = delayed.popleft()
                execute("DELETE FROM window WHERE sender = $sender AND id = $id", (sender, number))

        for each in self._transfers():
            now = datetime.fromisoformat(each["at"]).timestamp()
            expire(now)
            row = (each["id"], each["sender"], each["recipient"], each["amount"])
            for found in execute(select, row):
                document = dict(zip(("id", "sender", "recipient", "amount", "window"), found, strict=True))
                document["window"] = orjson.loads(document["window"])
                yield document
            execute(insert, (each["sender"], each["id"], each["recipient"], each["amount"]))
            delayed.append((now + 86_400, each["sender"], each["id"]))
        expire(float("inf"))

    def transfer_outcomes(self, db: apsw.Connection) -> Iterator[Any]:
        db.execute("CREATE TABLE balances (account TEXT PRIMARY KEY, balance REAL) WITHOUT ROWID")
        execute = db.cursor().execute
        debit = (BANK / "debitSender.sql").read_text()
        credit = (
            "INSERT INTO balances (account, balance) VALUES ($recipient, 1000 + $amount)"
            " ON CONFLICT DO UPDATE SET balance = balance + $amount"
        )
        names = ("id", "sender", "recipient", "amount", "outcome", "sender_balance")
        arriving: list[tuple[float, int, str, float]] = []
        for each in self._transfers():
            now = datetime.fromisoformat(each["at"]).timestamp()
            while arriving and arriving[0][0] <= now:
                _, _, recipient, amount = heapq.heappop(arriving)
                execute(credit, {"recipient": recipient, "amount": amount})
            for found in execute(debit, each):
                yield dict(zip(names, found, strict=True))
                if found[4] == "approve":
                    heapq.heappush(arriving, (now + 1, each["id"], each["recipient"], each["amount"]))

    def balances(self, db: apsw.Connection) -> Iterator[Any]:
        db.execute("CREATE TABLE balances (user TEXT PRIMARY KEY, balance REAL) WITHOUT ROWID")
        execute = db.cursor().execute
        sql = "INSERT INTO balances VALUES (?, ?) ON CONFLICT DO UPDATE SET balance = balance + excluded.balance"
        with (self.folder / "transfer-outcomes.jsonl").open("rb") as file:
            for line in file:
                each = orjson.loads(line)
                if each["outcome"] == "approve":
                    execute(sql, (each["sender"], -each["amount"]))
                    execute(sql, (each["recipient"], each["amount"]))
        for user, balance in db.execute("SELECT user, balance FROM balances"):
            yield {"user": user, "balance": balance}


class Timer:
    """Times the transactions of a run."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def working(self, task: str, documents: int) -> None:
        """Nothing to note."""

    def committed(self, task: str, done: Committed) -> None:
        """A transaction is committed."""
        self.seconds += done.seconds

    def failed(self, task: str, error: Exception) -> None:
        """Give up."""
        raise error


_KINDS = {"a Python worker": b"-m\0derive.spark.daemon\0", "the Java virtual machine": b"org.apache.spark"}


class PeakMemory:
    """The greatest resident size that processes below this one ever had, KiB, by kind; looked up now and then."""

    def __init__(self) -> None:
        self.kib = dict.fromkeys([*_KINDS, "the driver"], 0)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            self._note("the driver", os.getpid())
            children: dict[int, list[int]] = {}
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it may just have ended
                    parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                    children.setdefault(int(parent), []).append(int(process.name))
            below = children.get(os.getpid(), [])
            while below:
                pid = below.pop()
                below += children.get(pid, [])
                with suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    for kind, part in _KINDS.items():
                        if part in command:
                            self._note(kind, pid)
                            break

    def _note(self, kind: str, pid: int) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        self.kib[kind] = max(self.kib[kind], int(status.partition("VmHWM:")[2].split()[0]))


def main() -> None:
    """Run both, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transfers", type=int, default=1_000_000)
    parser.add_argument("--accounts", type=int, default=50_000)
    parser.add_argument("--every-ms", type=float, default=10.0, help="milliseconds from one transfer to the next")
    parser.add_argument("--task", choices=TASKS, help="only this one; what it reads must be transfers")
    parser.add_argument("--json", action="store_true", help="one JSON object per task")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flowctl-bench-") as name:
        folder = Path(name)
        lines = folder / "transfers.jsonl"
        with lines.open("wb") as file:
            made = {"transfers": options.transfers, "accounts": options.accounts, "every-ms": options.every_ms}
            given = [f"--{name}={value}" for name, value in made.items()]
            subprocess.run([sys.executable, str(BANK / "generate.py"), *given], stdout=file, check=True)
        tasks = {name: floor for name, floor in TASKS.items() if options.task in (None, name)}
        _compare(lines, folder, options.transfers, tasks, as_json=options.json)


def _compare(lines: Path, folder: Path, transfers: int, tasks: dict[str, float], *, as_json: bool) -> None:
    catalog = load(BANK / "flow.yaml")
    store = Store(folder / "data")
    with lines.open("rb") as file:
        spec = catalog.collections["acmeBank/transfers"]
        Ingestion(store, spec, clock="/at").load(str(lines), json_lines(file))
    executor = SparkExecutor(None, folder / "spark.log")
    executor.warm_up()
    peak = PeakMemory()
    if not as_json:
        print(f"{transfers:,} transfers, {os.cpu_count()} cores; documents per second")
        print(f"{'derivation':<28}{'flowctl':>12}{'loop':>12}{'ratio':>8}{'floor':>8}")
    for task, floor in tasks.items():
        before = _loop(task, lines, folder)
        ours = _ours(task, catalog, store, executor)
        theirs = (before + _loop(task, lines, folder)) / 2
        row = (task, transfers / ours, transfers / theirs, theirs / ours, floor)
        if as_json:
            print(json.dumps(dict(zip(("task", "ours", "loop", "ratio", "floor"), row, strict=True))), flush=True)
        else:
            print("{:<28}{:>12,.0f}{:>12,.0f}{:>8.2f}{:>8.2f}".format(*row), flush=True)
    executor.close()
    store.close()
    peak.close()
    for kind, kib in peak.kib.items():
        print(f"peak memory of {kind}: {kib / 1024:,.0f} MiB", file=sys.stderr)


def _loop(task: str, lines: Path, folder: Path) -> float:
    """Seconds that the hand-written loop takes, on files of its own; what another task reads of it is kept."""
    work = folder / "loop"
    work.mkdir(exist_ok=True)
    seconds = Loop(lines, work).run(task)
    for file in work.glob("*.db*"):
        file.unlink()
    return seconds


def _ours(task: str, catalog: CatalogSpec, store: Store, executor: SparkExecutor) -> float:
    """Seconds that all transactions of a task take on Spark, from what is stored to what is committed."""
    timer = Timer()
    run = open_run(catalog, store, executor, cores=os.cpu_count() or 1, observer=timer, tasks=[task])
    run.until_idle()
    run.close()
    return timer.seconds


if __name__ == "__main__":
    main()
