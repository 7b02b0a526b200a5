"""A running Deno: frames in, frames out, and what it last said where it does not answer."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import orjson

from connectors.derive_typescript.catalog.config import config_of
from connectors.derive_typescript.runtime.command import command_line, deno, environment, needs_guards
from connectors.derive_typescript.runtime.prepared import project_folder
from connectors.derive_typescript.runtime.wire import LOG, Wire
from connectors.derive_typescript.types.interfaces import method_of
from derive.document.exact import dump_exact
from derive.protocol.derive import Level, Log
from derive.protocol.specs import DerivationSpec

_TAIL_BYTES = 4_000
_PIPE_BYTES = 1 << 20

_OUTSIDE_MEGABYTES, _CORE_MEGABYTES = 1024, 32
"""What Deno itself sets aside: about 550 MB on two cores, a part of it for each, and very little of it used."""

_PROCESSORS = 4
"""How many processors Deno, one thread of which runs the module, may keep busy on average."""

_RENEWED_SECONDS = 1.0
"""How long a bound of its processor time stands: to renew it for each answer takes longer than to read a short one."""

_PATIENCE = 5.0
"""Seconds to wait for the end of a process that was killed."""


class DenoProcess:
    """The harness with one derivation's module, without permission to touch anything but its pipes.

    One thread may send while another receives.

    Args:
        spec: the derivation.
        digest: of it, by `digest_of`.

    Attributes:
        log: takes what the module says.
        version: of the state its instance is at; None if its module keeps none.
        shard: whose state that is.
        abilities: which of `flush`, `startCommit` and `reset` the class has of its own, once a session was opened.
    """

    def __init__(self, spec: DerivationSpec, digest: str) -> None:
        self.log: Log = _unheard
        self.version: str | None = None
        self.shard = ""
        self.abilities: dict[str, bool] = {}
        # Not a pipe of Popen's: a fork would copy its lock, held by the thread that waits, and never get past it.
        self._stderr, child = os.pipe()
        pipe = subprocess.PIPE
        folder = project_folder(spec, digest)
        try:
            self._process = subprocess.Popen(
                command_of(spec, folder),
                cwd=_working_folder(spec, folder),
                env=environment(spec),
                stdin=pipe,
                stdout=pipe,
                stderr=child,
                bufsize=0,
            )
        finally:
            os.close(child)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._limit(spec.limits.heap_megabytes)
        self._limited_until = 0.0  # a moment of the monotonic clock
        for descriptor in (self._stdin, self._stdout):
            with suppress(OSError, AttributeError):  # Linux's; elsewhere pipes are as they are
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._sending = threading.Lock()  # held while a line is sent, and while the descriptor it goes to is closed
        self._ended = False
        self._wire = Wire(self._stdout)
        self._tail = bytearray()
        self._listener = threading.Thread(target=self._listen, name="deno-stderr", daemon=True)
        self._listener.start()
        with suppress(OSError):  # it is gone, which the first answer tells
            self._write(self._wire.token)

    def _limit(self, heap: int) -> None:
        """Bound what the process may take outside the heap that V8 bounds: buffers, and memory of WebAssembly."""
        most = (2 * heap + _OUTSIDE_MEGABYTES + _CORE_MEGABYTES * (os.cpu_count() or 1)) << 20
        with suppress(OSError, AttributeError):  # Linux's; elsewhere the heap alone is bounded
            resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (most, most))

    def _limit_time(self, seconds: float) -> None:
        """Bound the processor time that the process may take from now on, for if nobody is left to end it."""
        now = time.monotonic()
        if now < self._limited_until:
            return
        self._limited_until = now + _RENEWED_SECONDS
        with suppress(OSError, AttributeError, IndexError, ValueError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            most = int(used + _PROCESSORS * (_RENEWED_SECONDS + seconds)) + 2
            resource.prlimit(self._process.pid, resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def send(self, text: bytes) -> None:
        """Send a frame of JSON.

        Raises:
            OSError: the process is gone.
        """
        self._write(self._wire.framed(text))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        with self._sending:
            if self._ended:
                raise BrokenPipeError(errno.EPIPE, "the Deno process was ended")
            while rest:
                rest = rest[os.write(self._stdin, rest) :]

    def ask(self, question: Any, seconds: float) -> bytes:
        """Send something that is answered by one frame, and return its text; empty if the process is gone.

        Raises:
            Late: no answer came within `seconds`.
            Foreign: something else than a frame came.
        """
        try:
            self.send(dump_exact(question))
        except OSError:
            return b""
        return self.receive(seconds)

    def receive(self, seconds: float) -> bytes:
        """The text of the next answer; empty if the process is gone.

        What the module said in between goes to the log, and is no answer.

        Raises:
            Late: none came within `seconds`.
            Foreign: something else than a frame came.
        """
        self._limit_time(seconds)
        deadline = time.monotonic() + seconds
        while True:
            kind, text = self._wire.receive(deadline)
            if kind != LOG:
                return text
            level, message = orjson.loads(text)
            if level in get_args(Level):
                self.log(level, str(message))

    def end(self) -> tuple[int, str]:
        """End the process if it still runs; its exit status, and the last lines of its standard error."""
        if self.alive:
            self._process.kill()
        status = self._process.wait()
        self._listener.join(_PATIENCE)
        # A descriptor that is closed under a thread that sends would be the next process's. The write of one that waits
        # fails, as nobody is left to read, except where a fork keeps the other end: then it stays open.
        if self._sending.acquire(timeout=_PATIENCE):
            try:
                self._ended = True
                for stream in (self._process.stdin, self._process.stdout):
                    if stream is not None:
                        with suppress(OSError):
                            stream.close()
            finally:
                self._sending.release()
        return status, self._tail.decode("utf-8", "replace").strip()

    def abandon(self) -> None:
        """Forget a process that a fork of this one copied, and that belongs to the original."""
        self._process.returncode = 0
        os.close(self._stderr)

    def _listen(self) -> None:
        """Keep the last of standard error, where Deno itself says why it ends."""
        while chunk := os.read(self._stderr, 1 << 16):
            self._tail += chunk
            del self._tail[:-_TAIL_BYTES]
        os.close(self._stderr)


def command_of(spec: DerivationSpec, folder: Path) -> list[str]:
    """The command that runs a derivation's project, which is in `folder`."""
    methods = [method_of(transform.name) for transform in spec.transforms]
    net = bool(config_of(spec).permissions.net) and spec.limits.allows_permissions
    argument = orjson.dumps({"methods": methods, "net": net, "guarded": needs_guards(spec)}).decode()
    return [deno(), "run", *command_line(spec), str(folder / "main.ts"), argument]


def _working_folder(spec: DerivationSpec, folder: Path) -> Path:
    """Where relative paths begin: beside the catalog for a module that may read there."""
    permissions = config_of(spec).permissions
    beside = permissions.folder
    return Path(beside) if permissions.read and beside and Path(beside).is_dir() else folder


def _unheard(level: Level, message: str) -> None:
    """What is said when nobody has opened a session."""
