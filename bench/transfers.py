"""Input of the bench: AcmeBank's transfers as JSON Lines and in a data folder, generated once and copied for use."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.process import ROOT, flowctl, run

BANK = ROOT / "examples" / "acmebank"
CATALOG = BANK / "flow.yaml"


@dataclass(frozen=True, slots=True)
class Transfers:
    """Generated transfers.

    Attributes:
        count: number of transfers.
        folder: folder of the transfers and of files made from them.
    """

    count: int
    folder: Path

    @property
    def lines(self) -> Path:
        """Return the path of the file with one JSON object per line."""
        return self.folder / "transfers.jsonl"

    @property
    def data(self) -> Path:
        """Return the path of the data folder with the ingested transfers; runs use copies of the folder."""
        return self.folder / "data"

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty folder, which is removed at the end."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield Path(folder)

    @contextmanager
    def ingested(self) -> Iterator[Path]:
        """Yield a copy of the data folder, which is removed at the end."""
        with self.scratch() as folder:
            yield Path(shutil.copytree(self.data, folder / "data"))


def generate(folder: Path, count: int, accounts: int, every_ms: float) -> Transfers:
    """Generate transfers, and ingest them with `flowctl ingest`."""
    folder.mkdir()
    transfers = Transfers(count, folder)
    made = {"transfers": count, "accounts": accounts, "every-ms": every_ms}
    given = [f"--{name}={value}" for name, value in made.items()]
    run([sys.executable, str(BANK / "generate.py"), *given], output=transfers.lines)
    where = ["--source", str(CATALOG), "--data", str(transfers.data)]
    run(flowctl("ingest", *where, "--collection", "acmeBank/transfers", "--clock", "/at", str(transfers.lines)))
    return transfers
