"""Writers that are killed, or sleep while others take over, at random moments: every row comes, and none twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from files_writer import write

from connectors.materialize_files.manifest import Manifest

CONTEXT = multiprocessing.get_context("forkserver")
LAST = 10**9


def numbers(folder: Path) -> list[int]:
    """All rows of a folder, in the order of its files."""
    return [json.loads(line)["id"] for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def committed(root: Path) -> int:
    (shard,) = Manifest(root / ".flow" / "a%2Fm", "a/m").read().shards
    return int(bytes.fromhex(shard.checkpoint) or b"0")


def send(writer: ForkServerProcess, number: signal.Signals) -> None:
    """Send a signal to a writer, if it is still there."""
    assert writer.pid is not None
    with suppress(ProcessLookupError):
        os.kill(writer.pid, number)


def torment(root: Path, rounds: int) -> None:
    """Have writers end or sleep, one after the other; a sleeper wakes up beside the next one."""
    before: ForkServerProcess | None = None
    for _ in range(rounds):
        writer = CONTEXT.Process(target=write, args=(root, LAST))
        writer.start()
        time.sleep(random.uniform(0.01, 0.2))
        if before:
            send(before, signal.SIGCONT)
            time.sleep(random.uniform(0, 0.05))
            send(before, signal.SIGKILL)
            before.join()
        send(writer, random.choice([signal.SIGKILL, signal.SIGSTOP]))
        before = writer
    assert before is not None
    send(before, signal.SIGKILL)
    before.join()


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.torture)])
def test_writers_are_killed_and_sleep(tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # noqa: T201 (shown where it fails)
    random.seed(seed)
    write(tmp_path, 0)

    torment(tmp_path, rounds)
    done = committed(tmp_path)
    write(tmp_path, done + 30)

    assert done > 0
    assert numbers(tmp_path / "left") == numbers(tmp_path / "right") == list(range(committed(tmp_path)))
    assert committed(tmp_path) >= done + 30
    assert list((tmp_path / ".flow" / "a%2Fm" / "staged").iterdir()) == []
