"""The filter, the first occurrences and the balances as bytewax dataflows, with its recovery store on.

    python -m bench.peer_bytewax acmeBank/first-send transfers.jsonl FOLDER

prints the seconds of the fastest round without imports, and the number of published documents. With `--forgetful`, the
recovery store is off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.files import FileSink, FileSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from bench.peer_rounds import rounds_of

SNAPSHOTS = timedelta(seconds=10)
_REQUEST = ("id", "sender", "recipient", "amount")


def _text(transfer: dict[str, Any]) -> str:
    return orjson.dumps({name: transfer[name] for name in _REQUEST}).decode()


def _large(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        transfer = orjson.loads(line)
        if transfer["amount"] > 100:
            yield transfer["sender"], _text(transfer)


def _by_pair(lines: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in lines:
        transfer = orjson.loads(line)
        yield f"{transfer['sender']} {transfer['recipient']}", transfer


def _unless_seen(seen: bool | None, transfer: dict[str, Any]) -> tuple[bool, list[str]]:
    return True, [] if seen else [_text(transfer)]


def _by_sender(lines: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in lines:
        transfer = orjson.loads(line)
        yield transfer["sender"], transfer


def _added(total: float | None, transfer: dict[str, Any]) -> tuple[float, str]:
    total = (total or 0.0) + transfer["amount"]
    return total, orjson.dumps({**transfer, "amount": total}).decode()


def last_large_send(lines: Any) -> Any:
    """Build the filter."""
    return op.flat_map_batch("large", lines, _large)


def first_send(lines: Any) -> Any:
    """Build the first occurrences."""
    return op.stateful_flat_map("first", op.flat_map_batch("by_pair", lines, _by_pair), _unless_seen)


def balance(lines: Any) -> Any:
    """Build the balances: each transfer, with the sum of its sender's transfers so far as its amount."""
    return op.stateful_map("balance", op.flat_map_batch("by_sender", lines, _by_sender), _added)


DERIVATIONS: dict[str, Callable[[Any], Any]] = {
    "acmeBank/last-large-send": last_large_send,
    "acmeBank/first-send": first_send,
    "bench/balance": balance,
}


def derive(task: str, lines: Path, folder: Path, *, forgetful: bool = False) -> tuple[float, int]:
    """Run a dataflow from its empty store to its last snapshot; return its seconds, and the number of documents."""
    output, store = folder / "output.jsonl", folder / "recovery"
    begun = time.perf_counter()
    if not forgetful:
        store.mkdir()
        init_db_dir(store, 1)
    flow = Dataflow("bench")
    derived = DERIVATIONS[task](op.input("transfers", flow, FileSource(lines)))
    op.output("derived", derived, FileSink(output))
    cli_main(flow, epoch_interval=SNAPSHOTS, recovery_config=None if forgetful else RecoveryConfig(store))
    seconds = time.perf_counter() - begun
    with output.open("rb") as file:
        return seconds, sum(1 for _ in file)


if __name__ == "__main__":
    rounds_of(derive, DERIVATIONS, ["forgetful"])
