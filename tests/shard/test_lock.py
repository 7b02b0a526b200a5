"""Locks of files: a process that holds one for too long may be killed, but no other one in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from derive.errors import HeldError
from derive.shard import state
from derive.storage.metadata.process import is_dead, kill, this_process

pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell who holds a lock")

HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
if sys.argv[2] == "child":
    child = os.fork()
    if child == 0:
        sys.stdin.read(1)
        os._exit(0)
    os.close(descriptor)
print(flush=True)
os.waitpid(child, 0) if sys.argv[2] == "child" else sys.stdin.read()
"""
"""Holds a lock; or forks a child that does, and closes the file itself: the system names the parent nevertheless."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_EVICTION_SECONDS", 0.0)


@pytest.fixture(params=["child", "itself"])
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock"), request.param]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("holder", ["child"], indirect=True)
def test_a_parent_whose_child_holds_a_lock_is_not_killed(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    looks = []

    def may_evict(descriptor: int) -> bool:
        looks.append(descriptor)
        if len(looks) == 3:  # it was looked at twice, and not killed
            assert holder.stdin
            holder.stdin.write(b"x")
            holder.stdin.flush()
        return True

    with state.locked(tmp_path / "lock", may_evict):
        assert len(looks) >= 3
    assert holder.wait() == 0


@pytest.mark.parametrize("holder", ["itself"], indirect=True)
def test_a_process_that_holds_a_lock_is_killed(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    with state.locked(tmp_path / "lock", lambda descriptor: True):
        assert holder.wait() == -signal.SIGKILL


@pytest.mark.parametrize("holder", ["itself"], indirect=True)
def test_error_says_how_to_release_the_lock_of_a_stopped_process(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_PATIENCE_SECONDS", 0.0)
    holder.send_signal(signal.SIGSTOP)
    os.waitpid(holder.pid, os.WUNTRACED)
    with (
        pytest.raises(HeldError, match=f"process {holder.pid} has locked") as caught,
        state.locked(tmp_path / "lock"),
    ):
        pass
    assert caught.value.hint == (
        f"the process is stopped: let it continue (kill -CONT {holder.pid}), or end it (kill -KILL {holder.pid})"
    )


def test_a_process_does_not_kill_itself() -> None:
    assert not kill(this_process())
    assert not is_dead(this_process())
