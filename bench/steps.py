"""A profile by step: microseconds per document of a derivation in one process, by function.

A signal arrives after each millisecond of processor time. The elapsed time is charged to the innermost function of this
project on the stack, with the Python, SQLite and Arrow code that it calls. Other threads, which encode segments, are
one step. The profile slows the run little; times of short steps are rough, because each sample charges a whole
millisecond.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections import defaultdict
from contextlib import closing, nullcontext
from pathlib import Path
from types import FrameType

from bench.process import ROOT
from bench.transfers import CATALOG, Transfers, generate
from bench.warm import FLOORS, with_inputs
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.storage.store import Store

OURS = tuple(f"{ROOT / folder}/" for folder in ("derive", "connectors"))
CALLED_BACK = f"{ROOT / 'derive' / 'sql' / 'watch.py'}"
"""SQLite calls this function in the middle of its work, so a signal seen here belongs to the caller."""

EVERY_SECONDS = 0.001
LEAST_SHARE = 0.01
"""Steps with a smaller share are added up."""


class Sampler:
    """Collects processor time by file and function of this project."""

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._last = self._last_here = 0.0

    def __enter__(self) -> Sampler:
        self._last, self._last_here = time.process_time(), time.thread_time()
        signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, EVERY_SECONDS, EVERY_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def _note(self, _: int, frame: FrameType | None) -> None:
        now, here = time.process_time(), time.thread_time()
        while frame is not None and not _is_step(frame.f_code.co_filename):
            frame = frame.f_back
        step = ("elsewhere", "") if frame is None else _step(frame)
        self.seconds[step] += here - self._last_here
        self.seconds["other threads", ""] += now - self._last - (here - self._last_here)
        self._last, self._last_here = now, here


def _is_step(path: str) -> bool:
    return path.startswith(OURS) and path != CALLED_BACK


def _step(frame: FrameType) -> tuple[str, str]:
    path = Path(frame.f_code.co_filename).relative_to(ROOT)
    return str(path), frame.f_code.co_qualname


def profile(transfers: Transfers, task: str, rounds: int) -> dict[tuple[str, str], float]:
    """Return microseconds per document, by file and function; a first round for loading does not count."""
    sampler = Sampler()
    _derive(transfers, task, Sampler())
    for _ in range(rounds):
        _derive(transfers, task, sampler)
    documents = rounds * transfers.count
    return {step: seconds * 1e6 / documents for step, seconds in sampler.seconds.items()}


def _derive(transfers: Transfers, task: str, sampler: Sampler) -> None:
    with transfers.ingested() as data, closing(Store(data)) as store:
        for name in with_inputs([task]):
            run = open_run(load(CATALOG), store, InProcessExecutor(), tasks=[name])
            with sampler if name == task else nullcontext():
                run.until_idle()
            failed = run.tasks[name].error
            run.close()
            if failed:
                raise failed


def show(task: str, micros: dict[tuple[str, str], float]) -> None:
    """Print files and their functions, the most expensive first."""
    total = sum(micros.values())
    print(f"{task}: {total:.2f} µs a document")
    files: defaultdict[str, float] = defaultdict(float)
    for (path, _), taken in micros.items():
        files[path] += taken
    for path, taken in sorted(files.items(), key=lambda item: -item[1]):
        if taken < LEAST_SHARE * total:
            continue
        print(f"{taken:8.2f}  {path}")
        functions = sorted(((part, name) for (file, name), part in micros.items() if file == path), reverse=True)
        for part, name in functions:
            if part >= LEAST_SHARE * total:
                print(f"{part:16.2f}  {name}")
    rest = sum(taken for taken in files.values() if taken < LEAST_SHARE * total)
    print(f"{rest:8.2f}  everything else\n", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transfers", type=int, default=100_000)
    parser.add_argument("--accounts", type=int, default=50_000)
    parser.add_argument("--task", choices=FLOORS, action="append", help="only this one (repeatable)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flowctl-bench-") as name:
        transfers = generate(Path(name) / "transfers", options.transfers, options.accounts, every_ms=10.0)
        for task in options.task or FLOORS:
            show(task, profile(transfers, task, options.rounds))


if __name__ == "__main__":
    main()
