"""A process of a replica that is there before the controller that it is for."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.instance_options import Instances
from derive.sql.transactions.ownership import Ownership

_PROGRAM = """
import os, sys
with open("began", "a") as began:
    began.write(f"{os.getpid()}\\n")
print("127.0.0.1:9", flush=True)
sys.stdin.read()
"""


def command(folder: Path, token_file: Path) -> Sequence[str]:
    """A process that only says where it is, and which it is."""
    return [sys.executable, "-c", _PROGRAM]


async def began(data: Path, name: str) -> list[int]:
    """The processes that were a replica, once there was one."""
    path = data / "compute" / name / "began"
    async with asyncio.timeout(60):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.01)
    return [int(line) for line in path.read_text().split()]


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_controller_is_connected_to_processes_that_were_started_before_it(tmp_path: Path) -> None:
    async def work() -> None:
        instances = Instances(replicas=2, command=command)
        acquired = Ownership(tmp_path)
        acquired.require()
        instances.start(tmp_path)
        before = await began(tmp_path, "r1")
        assert not (tmp_path / "compute" / "r2").exists()  # it would take processors from what is enough for answers
        coordinator = Coordinator(tmp_path, None, instances=instances)
        try:
            coordinator.own(acquired)
            assert (acquired.is_held, coordinator.ownership.is_held) == (False, True)
            async with asyncio.timeout(60):
                while [state.address for state in coordinator.computing.replicas()] != ["127.0.0.1:9"] * 2:
                    await asyncio.sleep(0.01)
            assert await began(tmp_path, "r1") == before
            processes = before + await began(tmp_path, "r2")
        finally:
            await coordinator.close()
        assert len(processes) == 2
        assert not any(map(is_there, processes))

    asyncio.run(work())


def test_processes_that_no_controller_has_come_to_have_are_ended(tmp_path: Path) -> None:
    async def work() -> None:
        instances = Instances(replicas=1, command=command)
        instances.start(tmp_path)
        (process,) = await began(tmp_path, "r1")
        assert is_there(process)
        instances.close()
        assert not is_there(process)

    asyncio.run(work())


def test_a_right_that_was_taken_over_is_released_once(tmp_path: Path) -> None:
    first, second, other = Ownership(tmp_path), Ownership(tmp_path), Ownership(tmp_path)
    assert not first.was_ever_held
    first.require()
    assert first.was_ever_held
    second.take_over(first)
    first.release()
    with pytest.raises(SqlError, match="another flowctl serves SQL over this data folder"):
        other.require()
    second.release()
    other.require()
    other.release()
