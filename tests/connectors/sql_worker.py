"""A process that adds to sums in a database until it is killed or fenced off: `sql_worker.py NAME CONFIG [SCHEMA]`.

Transaction `n` adds `n` to some of the sums, of which it loads what they are, and has `n + 1` as its checkpoint. So
what the sums are follows from the checkpoint alone, however many processes have been at work, and however they ended.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from sql_databases import CONNECTORS, Database, load, source, stored

from connectors.kit.connector import BEGIN_FROM_NOTHING
from derive.errors import FencedError, FlowError

SUMS = source({"id": ["string"]}, {"sum": ["integer"]})
BINDING = SUMS.binding("sums")
FENCED, FAILED = 3, 4


def touched(transaction: int) -> list[str]:
    """The sums that a transaction adds to; now and then they are many."""
    count = 400 if transaction % 10 == 0 else 5
    return [f"sum {(transaction * 7 + index) % 1000}" for index in range(count)]


def expected(transactions: int) -> dict[str, int]:
    """The sums after so many transactions."""
    sums: dict[str, int] = {}
    for transaction in range(transactions):
        for name in touched(transaction):
            sums[name] = sums.get(name, 0) + transaction
    return sums


def count_of(checkpoint: bytes) -> int:
    """How many transactions a checkpoint stands for."""
    return 0 if checkpoint in (b"", BEGIN_FROM_NOTHING) else int(checkpoint)


def work(database: Database) -> None:
    """Add to sums for ever."""
    with database.session(BINDING) as session:
        print("ready", flush=True)  # noqa: T201
        first = transaction = count_of(session.checkpoint)
        while True:
            names = touched(transaction)
            sums = _sums(load(session, [(name,) for name in names]))
            changed = [{"id": name, "sum": sums.get(name, 0) + transaction} for name in names]
            transaction += 1
            session.prepare(b"%d" % transaction)
            for exists in (True, False):
                rows = [row for row in changed if (row["id"] in sums) == exists]
                if rows:
                    session.store(0, stored(BINDING, rows, exists=exists))
            session.commit()
            if transaction == first + 1:
                print("committed", flush=True)  # noqa: T201


def _sums(documents: Iterable[str]) -> dict[str, int]:
    return {document["id"]: document["sum"] for document in map(json.loads, documents)}


def main() -> int:
    """Work in the database that the arguments name."""
    kind, config, *schema = sys.argv[1:]
    try:
        work(Database(CONNECTORS[kind](), json.loads(config), query=lambda sql: [], schema=tuple(schema)))
    except FencedError:
        return FENCED
    except FlowError as exc:
        print(exc, file=sys.stderr)  # noqa: T201
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
