"""The runtime's data for a shard: a small file in its folder, replaced as a whole, by the current run only."""

from __future__ import annotations

from pathlib import Path

import orjson

from derive.durable import sync
from derive.materialize.checkpoint import ShardData
from derive.shard.plan import Attempt
from derive.shard.state import owned
from derive.storage.disk_errors import translated

NAME = "kept.json"


class ShardFile:
    """The stored data of one shard.

    Args:
        folder: folder of the shard.
        attempt: the running attempt.

    Attributes:
        attempt: the running attempt.
    """

    def __init__(self, folder: Path, attempt: Attempt) -> None:
        self._folder = folder
        self.attempt = attempt

    def load(self) -> ShardData:
        """Return the data stored last."""
        try:
            value = orjson.loads((self._folder / NAME).read_bytes())
        except FileNotFoundError:
            return ShardData()
        return ShardData(value["flow"].encode(), value["driver"].encode())

    def save(self, kept: ShardData) -> None:
        """Replace the stored data durably.

        Raises:
            FencedError: a newer run has started.
            OutdatedError: a newer attempt has begun.
        """
        with translated(self._folder), owned(self._folder, self.attempt):
            write_kept(self._folder, kept)


def write_kept(folder: Path, kept: ShardData) -> None:
    """Store data durably for a shard whose folder exists."""
    temporary = folder / f"{NAME}.new"
    temporary.write_bytes(orjson.dumps({"flow": kept.flow.decode(), "driver": kept.driver.decode()}))
    sync(temporary)
    temporary.replace(folder / NAME)
    sync(folder)
