"""Torture: the examples, killed at random moments over and over, must derive what they derive undisturbed (law L2).

`flowctl run` works in many small transactions, now with shuffles and now without: some runs on Spark, some in their own
process, and some begin there and hand over to Spark. Every round kills the driver, a
Python worker, Deno or all of them at a random moment, or pauses all of them; a run that lost its driver is started
again, one that lost something else goes on by itself or is started again, and another takes over from a paused one,
which wakes up later. Once a run has come to its end, every byte of every derived collection is compared with what one
undisturbed run in large transactions derived, and it begins again.

With `--failpoints` it is killed at every failpoint instead that lies on Spark's workers, and run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from victims import deno_processes, python_workers

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.failpoint import FAILPOINTS
from derive.storage.ingest import Ingestion
from derive.storage.inputs.line import json_lines
from derive.storage.store import Store

ROOT = Path(__file__).parents[2]
FLOWCTL = """
import sys
from derive.cli.main import main
sys.argv[0] = "flowctl"
main()
"""
_PATIENCE_SECONDS = 900
SPARK, NO_SPARK = 0, 1_000_000_000
"""Numbers of documents, up to which a run does without Spark: none, and all."""


def main() -> int:
    """Run the rounds; the exit status is that of the first difference."""
    parser = options_of(__doc__ or "")
    parser.add_argument("--failpoints", action="store_true", help="crash at each failpoint of a worker instead")
    options = parser.parse_args()
    print(f"{options.example}: {options.rounds} rounds, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flowctl-torture-") as name:
        return Torture(Path(name), options).run()


def options_of(about: str) -> argparse.ArgumentParser:
    """The command line of a torture."""
    parser = argparse.ArgumentParser(description=about)
    parser.set_defaults(failpoints=False)
    parser.add_argument("--example", choices=["acmebank", "flights"], default="acmebank")
    parser.add_argument("--rounds", type=int, default=200, help="how many kills")
    parser.add_argument("--documents", type=int, default=20_000, help="how many transfers, or flights")
    parser.add_argument("--transaction", type=int, default=1_000, help="about how many documents a transaction covers")
    parser.add_argument("--pause", type=float, default=5.0, help="most seconds from one kill to the next")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    return parser


class Torture:
    """One example, under torture."""

    KINDS: ClassVar = {"driver": 1, "everything": 1, "pause": 1, "worker": 3, "deno": 2}
    """What is killed, and how often in relation to the others."""
    VICTIMS: ClassVar[dict[str, Callable[[int], list[int]]]] = {"worker": python_workers, "deno": deno_processes}
    """How single processes are found, by the number of a run's session."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.source = ROOT / "examples" / options.example / "flow.yaml"
        self.catalog = load(self.source)
        self.options = options
        self.dice = random.Random(options.seed)
        self.killed: Counter[str] = Counter()
        self.paused: list[subprocess.Popen[bytes]] = []
        self.started = 0
        self.compared = 0
        ingest = {"acmebank": self._transfers, "flights": self._flights}[options.example]
        ingest(options.documents)

    def run(self) -> int:
        """All rounds; 0 if nothing ever differed."""
        data = self._fresh("undisturbed")
        assert self._start(data, "{}", SPARK).wait() == 0
        expected = self._digest(data)
        print(f"undisturbed: {len(expected)} derivations", flush=True)
        if self.options.failpoints:
            return self._walk(expected)
        data = self._fresh("disturbed")
        while True:
            if not self._until_lost(data):
                continue
            self._wake()
            self.compared += 1
            found = self._digest(data)
            if found != expected:
                differing = [name for name in expected if found[name] != expected[name]]
                print(f"{self._told()}: {', '.join(differing)} differ; see {self._kept(data)}")
                return 1
            print(f"{self._told()}: same bytes", flush=True)
            if self.killed.total() >= self.options.rounds:
                return 0
            data = self._fresh("disturbed")

    def _walk(self, expected: dict[str, str]) -> int:
        """Crash at each failpoint of a worker, early and late, and go on without; 0 if nothing ever differed."""
        limits = self._limits(shuffled=True)
        for name in sorted(each for each in FAILPOINTS if each.startswith(("segment.", "state."))):
            for times in (1, 5):
                data, status = self._crash(limits, f"{name}:{times}")
                reached = "every attempt died" if status == 1 else "all was done in spite of it"
                assert self._start(data, limits, SPARK).wait() == 0
                same = self._digest(data) == expected
                print(f"{name}:{times}: {reached}; {'same bytes' if same else 'OTHER BYTES'}", flush=True)
                if not same:
                    return 1
        return 0

    def _crash(self, limits: str, failpoint: str) -> tuple[Path, int]:
        """Run with a failpoint; the data folder and the exit status, which is 1 if no attempt of a worker lived."""
        # Something is discarded only where the driver died between a worker's commit and its own.
        deaths = range(40, 64, 4) if failpoint in ("state.discarding:1", "state.discarded:1") else (None,)
        for death in deaths:
            data = self._fresh("disturbed")
            if death is not None:
                self._start(data, limits, SPARK, f"metadata.committing:{death}").wait()
            status = self._start(data, limits, SPARK, failpoint).wait()
            assert status in (0, 1)
            if status == 1:
                break
        return data, status

    def _is_kept_busy(self) -> bool:
        """Whether the last run ended because another one was paused in the middle of a commit, as its error says."""
        last = (self.folder / "stderr.txt").read_text(encoding="utf-8").splitlines()[-1]
        named = re.search(r"end it \(kill -KILL (\d+)\)", last)
        return named is not None and os.getsid(int(named[1])) in [process.pid for process in self.paused]

    def _kept(self, data: Path) -> Path:
        """A copy, which stays, of all there is to see of a failure."""
        kept = Path(tempfile.mkdtemp(prefix="flowctl-failed-"))
        for folder in {data, self.folder / "undisturbed"}:
            shutil.copytree(folder, kept / folder.name)
        shutil.copy(self.folder / "stderr.txt", kept)
        return kept

    def _told(self) -> str:
        kills = ", ".join(f"{count} {what}" for what, count in sorted(self.killed.items()))
        return f"{self.killed.total()} kills ({kills}), {self.started} starts, {self.compared} times to the end"

    def _until_lost(self, data: Path) -> bool:
        """Start a run, and kill something now and then until it ends; whether it came to its end."""
        local_documents = self.dice.choice([SPARK, NO_SPARK, 2 * self.options.transaction])
        process = self._start(data, self._limits(shuffled=self.dice.choice([True, False])), local_documents)
        self.started += 1
        if local_documents == SPARK:
            _wait_for_work(process)
        else:
            time.sleep(self.dice.uniform(0.5, 2.0))
        lost = 0
        while True:
            try:
                status = process.wait(self.dice.uniform(0, self.options.pause))
                break
            except subprocess.TimeoutExpired:
                pass
            if self.killed.total() >= self.options.rounds:
                status = process.wait(_PATIENCE_SECONDS)
                break
            what = self._kill(process)
            lost += 1
            if what == "pause":
                return False  # another run takes over
            if what in ("driver", "everything"):
                process.wait(_PATIENCE_SECONDS)
                return False
            if self.dice.random() < 0.5:
                self._wake()
        if status and self._is_kept_busy():
            self._wake()
            return False
        # A transaction that loses its Deno, or too many workers, fails; the next run does it again.
        assert status == 0 or lost, f"it ended with status {status}, undisturbed; see {self._kept(data)}"
        return status == 0

    def _kill(self, process: subprocess.Popen[bytes]) -> str:
        """Kill something of a run; what it was."""
        what = self.dice.choices(list(self.KINDS), weights=list(self.KINDS.values()))[0]
        if what not in ("everything", "pause", "driver") and not self._kill_by_name(what, process.pid):
            what = "worker" if what == "deno" and self._kill_by_name("worker", process.pid) else "driver"
        if what == "everything":
            os.killpg(process.pid, signal.SIGKILL)
        elif what == "pause":
            os.killpg(process.pid, signal.SIGSTOP)
            self.paused.append(process)
        elif what == "driver":
            process.kill()
        self.killed[what] += 1
        return what

    def _kill_by_name(self, what: str, session: int) -> bool:
        """Kill one process of a kind; whether there was one."""
        victims = self.VICTIMS[what](session)
        if victims:
            with suppress(ProcessLookupError):
                os.kill(self.dice.choice(victims), signal.SIGKILL)
        return bool(victims)

    def _wake(self) -> None:
        """Let paused runs go on, which another has taken over from: they find that out, and end."""
        while self.paused:
            process = self.paused.pop()
            os.killpg(process.pid, signal.SIGCONT)
            status = process.wait(_PATIENCE_SECONDS)
            # One that had locked a shard was killed by the run that took over: what it held is needed, and it was paused.
            evicted = -signal.SIGKILL
            assert status in (0, 1, evicted), (
                f"a run that was paused ended with status {status}; see {self._kept(self.folder / 'disturbed')}"
            )

    def _limits(self, *, shuffled: bool) -> str:
        """What `flowctl run --limits` takes: small transactions, which are shuffled however little they read, or not."""
        return json.dumps({"documents": self.options.transaction, "small_documents": -1 if shuffled else 20_000})

    def _start(self, data: Path, limits: str, local_documents: int, failpoint: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle", "--limits", limits]
        command.append(f"--local-documents={local_documents}")
        return subprocess.Popen(
            [*command, "--source", str(self.source), "--data", str(data)],
            env=os.environ | {"FLOW_FAILPOINT": failpoint},
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
            for rows in read_rows(store, spec.collection, ReadOptions()):
                for row in rows.tuples():
                    digest.update(repr(row).encode())
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
