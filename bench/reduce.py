"""The bench of reductions: documents per second of the combiner beside parsing and writing the same documents.

The bench runs in one process. `loads` + `dumps` with orjson is the unit: a ratio of 0.5 means that reducing a document
takes twice as long as parsing and writing it. Rounds of both alternate, and the best of each counts, so that other load
falls on neither. The exit code is 1 if a ratio is below its floor.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from derive.reduce.combiner import Combiner


@dataclass(frozen=True, slots=True)
class Case:
    """A schema, documents with a few keys, and the minimum ratio."""

    name: str
    schema: dict[str, Any]
    documents: Callable[[int], list[dict[str, Any]]]
    floor: float


CASES = (
    Case(
        "merge, sum",
        {
            "type": "object",
            "reduce": {"strategy": "merge"},
            "required": ["account"],
            "properties": {"account": {"type": "string"}, "balance": {"type": "number", "reduce": {"strategy": "sum"}}},
        },
        lambda count: [{"account": f"account-{number % 7}", "balance": number % 100} for number in range(count)],
        0.25,
    ),
    Case(
        "sum or reset",
        {
            "type": "object",
            "required": ["account", "action", "value"],
            "properties": {"account": {"type": "string"}, "value": {"type": "integer"}},
            "oneOf": [
                {"properties": {"action": {"const": "reset"}}, "reduce": {"strategy": "lastWriteWins"}},
                {
                    "properties": {
                        "action": {"const": "sum", "reduce": {"strategy": "firstWriteWins"}},
                        "value": {"reduce": {"strategy": "sum"}},
                    },
                    "reduce": {"strategy": "merge"},
                },
            ],
        },
        lambda count: [
            {"account": f"account-{number % 7}", "action": "sum" if number % 10 else "reset", "value": number % 100}
            for number in range(count)
        ],
        0.05,
    ),
)


def seconds(task: Callable[[], object]) -> float:
    """Return the seconds of a task, without the garbage collector, which would traverse the documents repeatedly."""
    gc.disable()
    try:
        begin = time.perf_counter()
        task()
        return time.perf_counter() - begin
    finally:
        gc.enable()


def parse_and_write(texts: list[bytes]) -> None:
    for text in texts:
        orjson.dumps(orjson.loads(text))


def measure(case: Case, count: int, rounds: int) -> dict[str, float]:
    """Return documents per second of each way."""
    documents = case.documents(count)
    texts = [orjson.dumps(document) for document in documents]
    combiner = Combiner(case.schema, name=case.name)
    tasks: dict[str, Callable[[], object]] = {
        "loads + dumps": lambda: parse_and_write(texts),
        "full": lambda: combiner.full(documents),
        "partial": lambda: combiner.partial(documents),
    }
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            best[name] = min(best[name], seconds(task))
    return {name: count / taken for name, taken in best.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    slow = False
    print(f"{'schema':14}{'way':10}{'documents/s':>14}{'ratio':>8}{'floor':>8}")
    for case in CASES:
        rates = measure(case, options.documents, options.rounds)
        unit = rates.pop("loads + dumps")
        print(f"{case.name:14}{'orjson':10}{unit:14,.0f}")
        for way, rate in rates.items():
            slow = slow or rate / unit < case.floor
            print(f"{case.name:14}{way:10}{rate:14,.0f}{rate / unit:8.2f}{case.floor:8.2f}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
