"""The hand-written loop: a program that a person would write without flowctl, in one process.

The loop uses orjson and apsw, the same SQL, tables in a file, one transaction, no validation, and the order of the
file. Its output and its tables are on the disk when it ends; if it is killed before, nothing is.

    python -m bench.loop acmeBank/first-send transfers.jsonl FOLDER

prints its seconds without the start of Python, and leaves `first-send.jsonl` in the folder.
"""

from __future__ import annotations

import argparse
import heapq
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import orjson

Documents: TypeAlias = Iterator[dict[str, Any]]

_BANK = Path(__file__).parent.parent / "examples" / "acmebank"
_REQUEST = ("id", "sender", "recipient", "amount")


def last_large_send(transfers: Documents, db: apsw.Connection) -> Documents:
    """Yield transfers with large amounts."""
    execute = db.cursor().execute
    for transfer in transfers:
        bound = (transfer["id"], transfer["sender"], transfer["recipient"], transfer["amount"])
        for row in execute("SELECT $id, $sender, $recipient, $amount WHERE $amount > 100", bound):
            yield dict(zip(_REQUEST, row, strict=True))


def first_send(transfers: Documents, db: apsw.Connection) -> Documents:
    """Yield the first transfer of each pair, with a table of seen pairs."""
    db.execute("CREATE TABLE seen_pairs (sender TEXT, recipient TEXT, PRIMARY KEY (sender, recipient)) WITHOUT ROWID")
    execute = db.cursor().execute
    sql = (
        "INSERT INTO seen_pairs VALUES ($sender, $recipient) ON CONFLICT DO NOTHING"
        " RETURNING $id, $sender, $recipient, $amount"
    )
    for transfer in transfers:
        bound = (transfer["sender"], transfer["recipient"], transfer["id"], transfer["amount"])
        for row in execute(sql, bound):
            yield dict(zip(_REQUEST, row, strict=True))


def grouped_transfers(transfers: Documents, db: apsw.Connection) -> Documents:
    """Yield transfers with their 24-hour windows."""
    db.execute(
        "CREATE TABLE window (sender TEXT, id INTEGER, recipient TEXT, amount REAL, PRIMARY KEY (sender, id))"
        " WITHOUT ROWID"
    )
    execute = db.cursor().execute
    select, insert = (_BANK / "enrichAndAddToWindow.sql").read_text().split(";\n\n")
    delayed: deque[tuple[float, str, int]] = deque()

    def expire(now: float) -> None:
        while delayed and delayed[0][0] < now:
            _, sender, number = delayed.popleft()
            execute("DELETE FROM window WHERE sender = $sender AND id = $id", (sender, number))

    for transfer in transfers:
        now = datetime.fromisoformat(transfer["at"]).timestamp()
        expire(now)
        bound = (transfer["id"], transfer["sender"], transfer["recipient"], transfer["amount"])
        for row in execute(select, bound):
            document = dict(zip((*_REQUEST, "window"), row, strict=True))
            yield document | {"window": orjson.loads(document["window"])}
        execute(insert, (transfer["sender"], transfer["id"], transfer["recipient"], transfer["amount"]))
        delayed.append((now + 86_400, transfer["sender"], transfer["id"]))
    expire(float("inf"))


def transfer_outcomes(transfers: Documents, db: apsw.Connection) -> Documents:
    """Yield approvals that depend on earlier ones, which arrive a second later."""
    db.execute("CREATE TABLE balances (account TEXT PRIMARY KEY, balance REAL) WITHOUT ROWID")
    execute = db.cursor().execute
    debit = (_BANK / "debitSender.sql").read_text()
    credit = (
        "INSERT INTO balances (account, balance) VALUES ($recipient, 1000 + $amount)"
        " ON CONFLICT DO UPDATE SET balance = balance + $amount"
    )
    names = (*_REQUEST, "outcome", "sender_balance")
    arriving: list[tuple[float, int, str, float]] = []
    for transfer in transfers:
        now = datetime.fromisoformat(transfer["at"]).timestamp()
        while arriving and arriving[0][0] < now:  # at equal times, debits come first
            _, _, recipient, amount = heapq.heappop(arriving)
            execute(credit, {"recipient": recipient, "amount": amount})
        for row in execute(debit, transfer):
            yield dict(zip(names, row, strict=True))
            if row[4] == "approve":
                heapq.heappush(arriving, (now + 1, transfer["id"], transfer["recipient"], transfer["amount"]))


def balances(outcomes: Documents, db: apsw.Connection) -> Documents:
    """Yield the sum of each account once, at the end."""
    db.execute("CREATE TABLE balances (user TEXT PRIMARY KEY, balance REAL) WITHOUT ROWID")
    execute = db.cursor().execute
    sql = "INSERT INTO balances VALUES (?, ?) ON CONFLICT DO UPDATE SET balance = balance + excluded.balance"
    for outcome in outcomes:
        if outcome["outcome"] == "approve":
            execute(sql, (outcome["sender"], -outcome["amount"]))
            execute(sql, (outcome["recipient"], outcome["amount"]))
    for user, balance in db.execute("SELECT user, balance FROM balances"):
        yield {"user": user, "balance": balance}


DERIVATIONS: dict[str, Callable[[Documents, apsw.Connection], Documents]] = {
    "acmeBank/last-large-send": last_large_send,
    "acmeBank/first-send": first_send,
    "acmeBank/grouped-transfers": grouped_transfers,
    "acmeBank/transfer-outcomes": transfer_outcomes,
    "acmeBank/balances": balances,
}


def output_of(task: str, folder: Path) -> Path:
    """Return the path of the loop's output for a derivation."""
    return folder / f"{task.split('/')[1]}.jsonl"


def derive(task: str, lines: Path, folder: Path) -> float:
    """Run one derivation; return its seconds.

    Args:
        task: name of the derivation.
        lines: input file: transfers, or outcomes for the balances.
        folder: folder of its tables and its output.
    """
    output = output_of(task, folder)
    db = apsw.Connection(str(output.with_suffix(".db")))
    db.execute(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-131072; PRAGMA wal_autocheckpoint=0"
    ).fetchall()
    begun = time.perf_counter()
    with output.open("wb") as file:
        db.execute("BEGIN")
        for document in DERIVATIONS[task](_parsed(lines), db):
            file.write(orjson.dumps(document) + b"\n")
        db.execute("COMMIT")
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begun
    db.close()
    return seconds


def _parsed(lines: Path) -> Documents:
    with lines.open("rb") as file:
        for line in file:
            yield orjson.loads(line)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=DERIVATIONS)
    parser.add_argument("lines", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(derive(options.task, options.lines, options.folder))


if __name__ == "__main__":
    main()
