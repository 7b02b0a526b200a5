"""Torture: the examples, killed at random moments over and over, must derive what they derive undisturbed (law L2).

A round starts `flowctl run`, kills the driver, a Python worker or Deno at a random moment, and looks whether the run
came to its end all the same. Once it has, every byte of every derived collection is compared, and it begins again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from engine.victims import deno_processes, python_workers

from derive.catalog import load
from derive.storage.contents import ReadOptions, read_rows
from derive.storage.ingest import Ingestion, json_lines
from derive.storage.store import Store

ROOT = Path(__file__).parent.parent
FLOWCTL = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"
_PATIENCE_SECONDS = 300


def main() -> int:
    """Run the rounds; the exit status is that of the first difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--example", choices=["acmebank", "flights"], default="acmebank")
    parser.add_argument("--rounds", type=int, default=200, help="how many kills")
    parser.add_argument("--documents", type=int, default=20_000, help="how many transfers, or flights")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"{options.example}: {options.rounds} rounds, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flowctl-torture-") as name:
        return Torture(Path(name), options).run()


class Torture:
    """One example, under torture."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.source = ROOT / "examples" / options.example / "flow.yaml"
        self.catalog = load(self.source)
        self.rounds = options.rounds
        self.dice = random.Random(options.seed)
        self.killed: Counter[str] = Counter()
        self.compared = 0
        ingest = {"acmebank": self._transfers, "flights": self._flights}[options.example]
        ingest(options.documents)

    def run(self) -> int:
        """All rounds; 0 if nothing ever differed."""
        data = self._fresh("undisturbed")
        process = self._start(data)
        _wait_for_work(process)
        begun = time.monotonic()
        assert process.wait() == 0
        seconds = time.monotonic() - begun
        expected = self._digest(data)
        print(f"undisturbed: {len(expected)} derivations at work for {seconds:.1f} s", flush=True)
        data = self._fresh("disturbed")
        for number in range(1, self.rounds + 1):
            status = self._round(data, seconds)
            if status == 0:
                self.compared += 1
                found = self._digest(data)
                if found != expected:
                    differing = [name for name in expected if found[name] != expected[name]]
                    print(f"round {number}: {', '.join(differing)} differ; see {data}")
                    shutil.copytree(data, Path(tempfile.mkdtemp(prefix="flowctl-differs-")) / "data")
                    return 1
                data = self._fresh("disturbed")
            if number % 10 == 0:
                kills = ", ".join(f"{count} {what}" for what, count in sorted(self.killed.items()))
                print(f"{number} rounds: killed {kills}; {self.compared} times to the end, same bytes", flush=True)
        return 0

    def _round(self, data: Path, seconds: float) -> int | None:
        """Start a run and kill something; the exit status if the run came to its end, None if it was killed."""
        process = self._start(data)
        _wait_for_work(process)
        try:
            return process.wait(self.dice.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            pass
        what = self.dice.choice(["driver", "driver", "worker", "deno", "everything"])
        victims = {
            "driver": [process.pid],
            "worker": python_workers(process.pid),
            "deno": deno_processes(process.pid),
            "everything": [],
        }[what]
        if what == "everything":
            os.killpg(process.pid, signal.SIGKILL)
        elif victims:
            try:
                os.kill(self.dice.choice(victims), signal.SIGKILL)
            except ProcessLookupError:
                return process.wait(_PATIENCE_SECONDS)
        else:
            what, victims = "driver", [process.pid]
            process.kill()
        self.killed[what] += 1
        status = process.wait(_PATIENCE_SECONDS)
        if what in ("driver", "everything"):
            return None
        return status if status == 0 else None  # what a lost Deno was about to say fails its transaction

    def _start(self, data: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle"]
        return subprocess.Popen(
            [*command, "--source", str(self.source), "--data", str(data)],
            stderr=(self.folder / "stderr.txt").open("ab"),
            start_new_session=True,
        )

    def _fresh(self, name: str) -> Path:
        data = self.folder / name
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(self.folder / "ingested", data)
        return data

    def _digest(self, data: Path) -> dict[str, str]:
        store = Store(data)
        found = {}
        for name, spec in self.catalog.derivations.items():
            digest = hashlib.sha256()
            for batch in read_rows(store, spec.collection, ReadOptions()):
                for row in batch.to_pylist():
                    digest.update(repr((row["adjusted"], row["seq"], row["key"], row["doc"])).encode())
            found[name] = digest.hexdigest()
        store.close()
        return found

    def _transfers(self, documents: int) -> None:
        lines = self.folder / "transfers.jsonl"
        generate = [sys.executable, str(ROOT / "examples/acmebank/generate.py"), f"--transfers={documents}"]
        with lines.open("wb") as file:
            subprocess.run([*generate, "--accounts=500"], stdout=file, check=True)
        self._ingest("acmeBank/transfers", lines, "/at", documents)

    def _flights(self, documents: int) -> None:
        subprocess.run([sys.executable, str(ROOT / "examples/flights/load.py"), str(self.folder)], check=True)
        self._ingest("flights/weather", self.folder / "weather.jsonl", "/hour", documents)
        self._ingest("flights/flights", self.folder / "flights.jsonl", "/scheduled", documents)

    def _ingest(self, collection: str, lines: Path, clock: str, documents: int) -> None:
        store = Store(self.folder / "ingested")
        with lines.open("rb") as file:
            rows = (line for number, line in enumerate(json_lines(file)) if number < documents)
            Ingestion(store, self.catalog.collections[collection], clock=clock).load(str(lines), rows)
        store.close()


def _wait_for_work(process: subprocess.Popen[bytes]) -> None:
    """Wait until Spark is up and lambdas are about to run; most of a run's time goes before that."""
    while process.poll() is None and not python_workers(process.pid):
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
