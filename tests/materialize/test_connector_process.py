"""Processes of connectors: they are known when they are ready, told of when they fail, and end with whoever began them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_connector

from derive.errors import TaskError
from derive.materialize.process import ConnectorProcess, guarded_command

TOY = guarded_command([sys.executable, toy_connector.__file__])
SLEEPER = [sys.executable, "-c", "import time; print('localhost:1', flush=True); time.sleep(600)"]

FORKS = """
import os

from connectors.kit.serving import ConnectorServer
from connectors.materialize_sqlite import MaterializeSqlite
from derive.protocol.driver import DriverClient, open_channel
from derive.protocol.stubs import materialize_pb2 as pb

server = ConnectorServer(MaterializeSqlite(), "127.0.0.1:0")
DriverClient(open_channel(server.address)).spec(pb.SpecRequest(), timeout=60)
child = os.fork()
if child == 0:
    os._exit(len(os.listdir("/proc/self/task")))
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Uses gRPC, and ends with the number of threads that a child process has after it was forked."""


def start(command: list[str], seconds: float = 30.0, **env: str) -> ConnectorProcess:
    return ConnectorProcess("the toy", command, "/", {**os.environ, **env}, seconds=seconds)


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_it_is_known_by_the_address_that_it_prints() -> None:
    process = start(TOY)

    assert process.address.startswith("127.0.0.1:")
    assert process.ended is None
    assert process.said == "a toy is ready"
    assert process.death() is None
    process.close()
    assert process.ended is not None


def test_it_shares_our_processors_and_not_our_signals() -> None:
    process = start(SLEEPER)
    (child,) = [
        int(pid)
        for task in Path("/proc/self/task").glob("*/children")
        for pid in task.read_text().split()
        if b"time.sleep(600)" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]

    assert os.getsid(child) == os.getsid(0)
    assert os.getpgid(child) == child
    process.close()


def test_one_that_ends_before_it_is_ready_is_told_with_its_last_words() -> None:
    with pytest.raises(TaskError) as caught:
        start(TOY, TOY="fail")

    assert caught.value.message == "the toy ended before it was ready (exit code 7):\ncannot play\nwith fail"


def test_one_that_is_never_ready_is_told_with_its_last_words() -> None:
    with pytest.raises(TaskError) as caught:
        start(TOY, 2.5, TOY="slow")

    assert caught.value.message == "the toy did not print its address within 2.5 s:\nstill thinking"


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(TaskError, match="the toy cannot be started: No such file or directory"):
        start(["/no/such/program"])
    with pytest.raises(TaskError, match=r"exit code 127\):\ncannot run /no/such/program: No such file or directory"):
        start(guarded_command(["/no/such/program"]))


def test_many_lines_are_no_more_than_the_last_of_them() -> None:
    noise = "import sys\nfor n in range(30): print('line', n, 'x' * 1000, file=sys.stderr)\nsys.exit(1)"

    with pytest.raises(TaskError) as caught:
        start([sys.executable, "-c", noise])

    lines = caught.value.message.split("\n")
    assert len(lines) == 21
    assert lines[1].startswith("line 10 xxx")
    assert max(map(len, lines)) == 500


def test_a_guarded_program_ends_with_its_guard_and_says_how() -> None:
    program = "import sys, time; print('localhost:1', flush=True); time.sleep(0.3); print('enough', file=sys.stderr); sys.exit(5)"
    process = start(guarded_command([sys.executable, "-c", program]))
    until(lambda: process.ended is not None)

    assert process.death() == "the toy has ended (exit code 5):\nenough"
    process.close()


def test_a_program_that_hears_nothing_is_ended_all_the_same() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER[2]
    process = start([sys.executable, "-c", deaf])

    process.close()

    assert process.ended == -signal.SIGKILL


OWNER = """\
import os, sys, time
from derive.materialize.process import ConnectorProcess, guarded_command
program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); print('localhost:1', flush=True); time.sleep(600)"
ConnectorProcess("it", guarded_command([sys.executable, "-c", program, sys.argv[1]]), "/", dict(os.environ))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_program_outlives_whoever_started_it(how: signal.Signals, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(pid_file)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"started\n"
    program = int(pid_file.read_text())
    assert runs(program)

    owner.send_signal(how)
    owner.wait()
    owner.stdout.close()

    until(lambda: not runs(program))


def test_no_program_outlives_its_guard(tmp_path: Path) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); print('localhost:1', flush=True); time.sleep(600)"
    pid_file = tmp_path / "pid"
    process = start(guarded_command([sys.executable, "-c", program, str(pid_file)]))
    pid = int(pid_file.read_text())
    guard = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

    os.kill(guard, signal.SIGKILL)

    until(lambda: not runs(pid))
    process.close()


def test_one_that_is_not_ready_is_not_waited_for_once_it_is_wanted_no_more() -> None:
    asked = iter((True, False))
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(TaskError, match="did not print its address"):
        ConnectorProcess("the toy", silent, "/", os.environ, seconds=600, should_wait=lambda: next(asked))


def test_a_forked_process_has_no_threads_of_grpc() -> None:
    """Threads would abort it where it closes descriptors before it starts another program, as PySpark starts Java."""
    env = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}

    assert subprocess.run([sys.executable, "-c", FORKS], env=env, check=False).returncode == 1
