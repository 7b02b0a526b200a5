"""Checks what the demo derived against a computation of its own: the oracles of the tests, plain loops over the input.

They share nothing with the runtime but the rules that the examples state. Run as `check.py FOLDER`, with the folder
that holds the catalog and the input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import reduced_documents
from derive.protocol.specs import CollectionSpec
from derive.storage.store import Store

Document: TypeAlias = dict[str, Any]

ORACLES = Path(__file__).parent.parent / "tests" / "examples"
SHOWN = 3


def differences(found: Iterable[Document], expected: Mapping[Any, Document], *key: str) -> list[str]:
    """Where documents are not those that are expected, by key; each is a line, and there are none if all is well."""
    told = []
    rest = dict(expected)
    for document in found:
        parts = tuple(document[part] for part in key)
        name = parts if len(parts) > 1 else parts[0]
        shown = json.dumps(parts)
        wanted = rest.pop(name, None)
        if wanted is None:
            told.append(f"{shown} should not be there: {json.dumps(document)}")
        elif document != wanted:
            told.append(f"{shown} is {json.dumps(document)} and should be {json.dumps(wanted)}")
    return told + [f"{json.dumps(each)} is missing: {json.dumps(document)}" for each, document in rest.items()]


def derived(store: Store, spec: CollectionSpec) -> list[Document]:
    """The reduced documents of a collection, which is small enough to reduce in this process."""
    return [document for part in reduced_documents(store, spec, ReadOptions()) for document in part.documents()]


def read(file: Path) -> list[Document]:
    """Documents of a JSONL file."""
    return [json.loads(line) for line in file.open(encoding="utf-8")]


def expectations(folder: Path) -> Iterable[tuple[str, Mapping[Any, Document], tuple[str, ...]]]:
    """Each derived collection, with what it should hold and the key that this is told by."""
    sys.path.insert(0, str(ORACLES))
    import oracle_acmebank as bank
    import oracle_delays as delays
    import oracle_flights as air

    transfers = read(folder / "transfers.jsonl")
    outcomes = bank.expected_outcomes(transfers)
    yield "acmeBank/last-large-send", bank.expected_last_large_sends(transfers), ("sender",)
    yield "acmeBank/first-send", bank.expected_first_sends(transfers), ("id",)
    yield "acmeBank/grouped-transfers", bank.expected_grouped_transfers(transfers), ("id",)
    yield "acmeBank/transfer-outcomes", outcomes, ("id",)
    yield "acmeBank/balances", bank.expected_balances(outcomes), ("user",)
    flights, weather = read(folder / "flights" / "flights.jsonl"), read(folder / "flights" / "weather.jsonl")
    yield "flights/aircraft-last-seen", air.expected_last_seen(flights), ("tailnum",)
    yield "flights/idle-aircraft", air.expected_idle(flights), ("tailnum", "since")
    yield "flights/daily-carrier-stats", air.expected_daily_stats(flights), ("carrier", "date")
    departures = air.expected_departures(flights, weather)
    yield "flights/departures-with-weather", departures, ("carrier", "flight", "origin", "scheduled")
    enriched = delays.expected_departures(flights, weather)
    model = json.loads((ORACLES.parents[1] / "examples" / "delays" / "model.json").read_text())
    yield "delays/departures", enriched, delays.KEY
    yield "delays/late-arrivals", delays.expected_late_arrivals(enriched.values(), model), delays.KEY


def main() -> None:
    """Check every derived collection; the exit code is 1 if one is not as it should be."""
    folder = Path(sys.argv[1])
    catalog, store = load(folder / "flow.yaml"), Store(folder / ".flow")
    wrong = 0
    for collection, expected, key in expectations(folder):
        told = differences(derived(store, catalog.collections[collection]), expected, *key)
        if not told:
            print(f"{collection}: {len(expected):,} documents, as computed independently", flush=True)
            continue
        wrong += 1
        print(f"{collection}: {len(told):,} differences from an independent computation", file=sys.stderr)
        for line in told[:SHOWN]:
            print(f"  {line}", file=sys.stderr)
    if wrong:
        sys.exit(f"{wrong} collections are not what they should be")


if __name__ == "__main__":
    main()
