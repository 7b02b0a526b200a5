"""The names of processes: one that is gone is known to be gone, and one that cannot be seen is not called dead."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from derive.storage.metadata.process import is_dead, is_local, show_process, this_process

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]


def renamed(**parts: str) -> str:
    """This process's name with some of its parts replaced."""
    names = ("host", "pid", "namespace", "began")
    values = dict(zip(names, this_process().split(":"), strict=True)) | parts
    return ":".join(values[name] for name in names)


def test_running_process_is_local_and_alive() -> None:
    assert is_local(this_process())
    assert not is_dead(this_process())


def test_process_is_shown_as_host_and_number() -> None:
    assert show_process("box:17:3a1c/4026531836:88121") == "box:17"
    assert show_process("box:17") == "box:17"


def test_a_process_that_has_ended_is_dead() -> None:
    child = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    name, old_name = renamed(pid=str(child.pid), began=""), f"{this_process().split(':')[0]}:{child.pid}"
    assert (is_dead(name), is_dead(old_name)) == (False, False)
    child.kill()
    child.communicate()
    assert (is_dead(name), is_dead(old_name)) == (True, True)


def test_reused_process_number_is_another_process() -> None:
    assert is_dead(renamed(began="1"))


@pytest.mark.parametrize("part", ["host", "namespace"])
def test_invisible_process_is_not_reported_dead(part: str) -> None:
    """A container has the name of its host, and counts its processes from 1."""
    name = renamed(**{part: "elsewhere"}, pid="4000000")
    assert not is_local(name)
    assert not is_dead(name)


def test_zombie_process_is_dead() -> None:
    """In a container whose first process is not an `init`, one that was killed stays in the table of processes."""
    child = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    name = renamed(pid=str(child.pid), began="")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(name)
    child.communicate()
