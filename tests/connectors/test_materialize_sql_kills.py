"""Processes that are killed, or stopped while others take over: whatever happens, sums follow from the checkpoint."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sql_databases import DATABASES, Database
from sql_worker import BINDING, FENCED, count_of, expected

WORKER = Path(__file__).with_name("sql_worker.py")
LONGEST = {"duckdb": 1.5}
"""Seconds, at most, before a process is killed."""


class Worker:
    """A process at work."""

    def __init__(self, name: str, database: Database) -> None:
        command = [sys.executable, str(WORKER), name, json.dumps(database.config), *database.schema]
        root = str(WORKER.parents[2])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        self._said = self.process.stdout.readline()

    @property
    def is_ready(self) -> bool:
        return self._said == b"ready\n"

    def wait_for_commit(self) -> None:
        """Wait until it has committed something, however slow the machine is."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"committed\n"

    def send(self, what: signal.Signals) -> None:
        self.process.send_signal(what)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        _, errors = self.process.communicate(timeout=60)
        assert b"Traceback" not in errors, errors.decode()
        return self.process.returncode


def checked(database: Database, at_least: int) -> int:
    """How many transactions are committed, and the sums are those of these."""
    with database.session(BINDING) as session:
        count = count_of(session.checkpoint)
    rows = dict(database.query("SELECT id, sum FROM sums"))
    assert {name: int(total) for name, total in rows.items()} == expected(count)
    assert count >= at_least
    return count


def torment(name: str, database: Database, kills: int, seed: int, *, stops: bool) -> int:
    database.apply(BINDING)
    chance = random.Random(seed)
    count = 0
    for number in range(kills):
        worker = Worker(name, database)
        assert worker.is_ready
        time.sleep(chance.random() * LONGEST.get(name, 0.4))
        if stops and chance.random() < 0.5:
            worker.send(signal.SIGSTOP)
            successor = Worker(name, database)
            assert successor.is_ready
            time.sleep(chance.random() * 0.2)
            worker.send(signal.SIGCONT)
            assert worker.end() != 0
            worker = successor
        if number == 0:
            worker.wait_for_commit()
        worker.send(signal.SIGKILL)
        assert worker.end() == -signal.SIGKILL
        count = checked(database, count)
    return count


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "stops"), [("duckdb", False), ("postgres", True), ("sqlite", False)])
def test_a_few_kills(name: str, stops: bool, tmp_path: Path) -> None:
    assert torment(name, DATABASES[name](tmp_path), 4, seed=13, stops=stops) > 0


@pytest.mark.torture
@pytest.mark.parametrize(("name", "stops"), [("duckdb", False), ("postgres", True), ("sqlite", False)])
def test_a_hundred_kills(name: str, stops: bool, tmp_path: Path) -> None:
    assert torment(name, DATABASES[name](tmp_path), 100, seed=random.randrange(1 << 30), stops=stops) > 100


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", sorted(DATABASES))
def test_of_two_at_once_one_goes_on(name: str, tmp_path: Path) -> None:
    database = DATABASES[name](tmp_path)
    database.apply(BINDING)
    first = Worker(name, database)
    second = Worker(name, database)
    assert first.end() == FENCED
    second.wait_for_commit()
    assert second.process.poll() is None
    second.send(signal.SIGKILL)
    second.end()
    assert checked(database, 1) > 0
