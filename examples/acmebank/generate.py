"""Generate transfers: seeded, with ascending times, as JSON Lines on standard output."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import orjson


def transfers(
    count: int, accounts: int, *, seed: int, start: datetime, every: timedelta
) -> Iterator[dict[str, object]]:
    """Transfers between distinct accounts, one every `every`.

    Amounts are multiples of 0.25, so that sums of them are exact in any order; about one in ten is above 100.
    """
    dice = random.Random(seed)
    begin = int(start.timestamp() * 1_000_000)
    step = every // timedelta(microseconds=1)
    for number in range(count):
        sender = int(dice.random() * accounts)
        recipient = (sender + 1 + int(dice.random() * (accounts - 1))) % accounts
        large = dice.random() < 0.1
        quarters = 401 + int(dice.random() * 3600) if large else 1 + int(dice.random() * 400)
        seconds, micros = divmod(begin + number * step, 1_000_000)
        yield {
            "id": number + 1,
            "sender": f"account-{sender:06d}",
            "recipient": f"account-{recipient:06d}",
            "amount": quarters / 4,
            "at": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z",
        }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transfers", type=int, default=100_000)
    parser.add_argument("--accounts", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=datetime.fromisoformat, default=datetime(2024, 1, 1, tzinfo=UTC))
    parser.add_argument("--every-ms", type=float, default=10.0, help="milliseconds from one to the next")
    options = parser.parse_args()
    every = timedelta(milliseconds=options.every_ms)
    made = transfers(options.transfers, options.accounts, seed=options.seed, start=options.start, every=every)
    write = sys.stdout.buffer.write
    for each in made:
        write(orjson.dumps(each) + b"\n")


if __name__ == "__main__":
    main()
