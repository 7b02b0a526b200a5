"""Run `flowctl` in forks of one server process that has already imported the modules of all commands.

A command is a process with its own exit status, standard streams and environment, as in a shell, but it costs a fork and
not the start of an interpreter. Tests of how commands start (`tests/cli/test_loading.py`) start an interpreter.
Commands, and processes that call `fork_programs` and their forks, start connectors, compute instances and Python modules
of derivations in this way, too. These are children of a server, and `owned_by` lists them by the process that has started them. Python
modules have a server of their own, which has imported their harness and nothing else.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import select
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

_ROOT = Path(__file__).parents[1]
_LARGEST_ORDER = 1 << 18
_END = b"end"
_INHERITED = "FORKED_FLOWCTL"
HOST = "FORKED_HOST"
"""Variable of the environment of a command that is to run on a machine with this host name."""
_ISOLATED = ["-s", "-P", "-X", "utf8"]
_HARNESS = "flow_harness.main"
_NAME = "of-{}"
"""Name of a fork, by the process that has ordered it."""

_Server: TypeAlias = tuple[socket.socket, subprocess.Popen[bytes]]
BARE = {"PATH": "", "PYTHONPATH": str(_ROOT)}
"""The environment of commands that need nothing of ours."""
UNFORKED = {"FORKED_PROGRAMS": "none"}
"""The environment of commands whose connectors and modules are programs, with command lines of their own."""


class Flowctl(subprocess.Popen[str]):
    """A command that runs, as `subprocess.Popen` has it; `args` are the arguments of `flowctl`.

    Of the options, standard streams, `text`, `cwd`, `env`, `start_new_session` and `process_group` have an effect.
    """

    _program = "flowctl"

    def _execute_child(self, *values: Any) -> None:
        arguments, _, _, _, _, folder, environment, _, _, _, *rest = values
        streams, is_leader, group = rest[:6], rest[11], rest[12]
        self._ended, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {
            "program": self._program,
            "owner": os.getpid(),
            "arguments": [os.fspath(argument) for argument in arguments],
            "folder": os.fspath(folder or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
            "is leader": is_leader,
            "group": group,
        }
        used = [number if given == -1 else given for number, given in enumerate([streams[0], streams[3], streams[5]])]
        server = _server()
        with theirs:
            socket.send_fds(server, [json.dumps(order).encode()], [*used, theirs.fileno(), server.fileno()])
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]
        self.pid = int(self._ended.recv(16))
        self._child_created = True

    def _internal_poll(self, _deadstate: Any = None) -> int | None:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
                self._end()
        return self.returncode

    def _wait(self, timeout: float | None = None) -> int:
        while self._internal_poll() is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _end(self) -> None:
        self.returncode = int(self._ended.recv(16))
        self._ended.close()


def flowctl(folder: Path, *arguments: str, text: str = "", env: Mapping[str, str] = BARE) -> tuple[int, str, str]:
    """Run a command in a folder; return its exit status, standard output and standard error."""
    pipe = subprocess.PIPE
    with Flowctl(
        arguments, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", cwd=folder, env=dict(env)
    ) as process:
        out, err = process.communicate(text)
    return process.returncode, out, err


class _Module(Flowctl):
    """A Python module of a derivation that runs; `args` are the arguments of its harness."""

    _program = "module"


def fork_programs() -> None:
    """Have this process and its forks start connectors, compute instances and Python modules as forks."""
    for name in ("derive.materialize.process", "connectors.module_kit.process"):
        import_module(name).Popen = _start  # type: ignore[attr-defined]


def _start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    if UNFORKED.items() <= os.environ.items():
        return subprocess.Popen(command, **options)
    if list(command[1:4]) == ["-P", "-m", "derive.cli.main"]:
        return Flowctl(command[4:], **options)
    begin = [sys.executable, *_ISOLATED, "-c"]
    if list(command[: len(begin)]) == begin and _HARNESS in command[len(begin)]:
        return _Module(command[len(begin) + 1 :], **options)
    return subprocess.Popen(command, **options)


def owned_by(process: int) -> list[int]:
    """Return the ids of the living processes that a process has started as forks."""
    found = []
    for file in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it has ended
            if (
                file.read_text().strip() == _NAME.format(process) and file.with_name("cmdline").read_bytes()
            ):  # no zombie
                found.append(int(file.parent.name))
    return found


def sharing_options() -> dict[str, Any]:
    """Return the options of `subprocess.Popen` by which a program shares the server of this process."""
    number = _server().fileno()
    return {"env": {_INHERITED: str(number), "PYTHONPATH": f"{_ROOT}:{_ROOT / 'tests'}"}, "pass_fds": [number]}


@cache
def _server() -> socket.socket:
    """Return the connection to the server, which this process and its forks share."""
    if inherited := os.environ.pop(_INHERITED, ""):
        return socket.socket(fileno=int(inherited))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        command = [sys.executable, __file__, str(number), Flowctl._program]
        server = subprocess.Popen(command, env=BARE, pass_fds=[number])
    _STARTED[os.getpid()] = ours, server
    return ours


_STARTED: dict[int, _Server] = {}


@atexit.register  # early, and so called when all commands have ended
def _end_server() -> None:
    """End the server of this process, although processes that a test has left stopped may hold its connection."""
    if started := _STARTED.get(os.getpid()):
        started[0].send(_END)
        started[1].wait()
        started[0].close()


def _start_module_server(environment: Mapping[str, str]) -> _Server:
    """Start the server of Python modules; return the connection to it, and its process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, *_ISOLATED, __file__, str(theirs.fileno()), _Module._program]
        return ours, subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])


def _serve(orders: socket.socket, program: str) -> None:
    """Fork a process for each order, and answer its id at once and its exit status when it ends.

    Orders of another program go to the server of that program.
    """
    others: list[_Server] = []
    with selectors.DefaultSelector() as running:
        running.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in running.select():
                if key.data:
                    child, answer = key.data
                    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                    running.unregister(key.fd)
                    os.close(key.fd)
                    with suppress(ConnectionError):  # the process that started it was killed, or waits no longer
                        os.write(answer, str(status).encode())
                    os.close(answer)
                    continue
                text, files, _, _ = socket.recv_fds(orders, _LARGEST_ORDER, 5)
                if text in {b"", _END}:
                    for other, process in others:
                        other.close()
                        process.wait()
                    return
                order = json.loads(text)
                if order["program"] != program:
                    _forward(order, files, others)
                    continue
                *streams, answer, server = files
                child = os.fork()
                if child == 0:
                    for held in list(running.get_map().values()):
                        os.close(held.fd)
                        if held.data:
                            os.close(held.data[1])
                    for other, _ in others:
                        other.close()
                    os.close(answer)
                    _take_place(order, streams)
                    _PROGRAMS[program](order["arguments"], server)
                for file in (*streams, server):
                    os.close(file)
                running.register(os.pidfd_open(child), selectors.EVENT_READ, (child, answer))
                with suppress(BrokenPipeError):
                    os.write(answer, str(child).encode())


def _forward(order: Mapping[str, Any], files: Sequence[int], others: list[_Server]) -> None:
    """Send an order to the server of Python modules, which starts with the first one."""
    if not others:
        others.append(_start_module_server(order["environment"]))
    socket.send_fds(others[0][0], [json.dumps(order).encode()], files)
    for file in files:
        os.close(file)


def _take_place(order: dict[str, Any], streams: list[int]) -> None:
    """Take the folder, environment, standard streams and process group of an order."""
    Path("/proc/self/comm").write_text(_NAME.format(order["owner"]))
    if order["is leader"]:
        os.setsid()
    if order["group"] >= 0:
        os.setpgid(0, order["group"])
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    if host := os.environ.get(HOST):
        socket.gethostname = lambda: host


def _run_flowctl(arguments: list[str], server: int) -> None:
    """Become `flowctl`, whose programs are forks of the server at a descriptor."""
    os.environ[_INHERITED] = str(server)
    _server()
    sys.path[:0] = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.argv = ["flowctl", *arguments]
    import_module("derive.failpoint").arm(os.environ.get("FLOW_FAILPOINT", ""))
    try:
        import_module("derive.cli.main").main()
    except SystemExit as ended:
        _exit(int(ended.code or 0))


def _run_module(arguments: list[str], server: int) -> None:
    """Become the harness of a Python module."""
    os.close(server)
    sys.argv = ["-c", *arguments]
    import_module(_HARNESS).main()


_PROGRAMS = {Flowctl._program: _run_flowctl, _Module._program: _run_module}


def _exit(status: int) -> None:
    """End this process as Python does, without freeing objects.

    Freeing writes to every page that is shared with the server, so the system copies them all: 0.1 s of each command.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _import_all() -> None:
    """Import every module that a command may need, except those of Spark and of the extra `ui`."""
    for package in (import_module("derive"), import_module("connectors")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(("derive.spark", "derive.ui")):
                import_module(module.name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    if sys.argv[2] == _Module._program:
        sys.path.insert(0, str(_ROOT / "connectors" / "derive_python"))
        import_module(_HARNESS)
    else:
        _import_all()
        fork_programs()
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
