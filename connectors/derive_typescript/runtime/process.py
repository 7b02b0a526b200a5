"""A running Deno process: frames sent and received, and its last error output."""

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
"""Address space that Deno itself reserves: about 550 MB on two cores, partly per core, and mostly unused."""

_PROCESSORS = 4
"""Maximum average number of processors that Deno may keep busy; one thread runs the module."""

_RENEWED_SECONDS = 1.0
"""Interval between renewals of the processor time limit: renewing takes longer than reading a short answer."""

_PATIENCE = 5.0
"""Seconds to wait for the end of a killed process."""


class DenoProcess:
    """The harness with one derivation's module, whose only permission is to use its pipes.

    One thread may send while another receives.

    Args:
        spec: the derivation.
        digest: its digest by `digest_of`.

    Attributes:
        log: receives the module's messages.
        version: version of its state; None if its module keeps none.
        shard: name of the state's shard.
        abilities: whether the class overrides each of `flush`, `startCommit` and `reset`, once a session was opened.
    """

    def __init__(self, spec: DerivationSpec, digest: str) -> None:
        self.log: Log = _unheard
        self.version: str | None = None
        self.shard = ""
        self.abilities: dict[str, bool] = {}
        # A Popen pipe would not do: a fork would copy its lock, which the waiting thread holds, and block
        # forever.
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
        self._limited_until = 0.0  # monotonic clock
        for descriptor in (self._stdin, self._stdout):
            with suppress(OSError, AttributeError):  # Linux only; elsewhere pipes keep their size
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._sending = threading.Lock()  # held while a line is sent, and while the descriptor is closed
        self._ended = False
        self._wire = Wire(self._stdout)
        self._tail = bytearray()
        self._listener = threading.Thread(target=self._listen, name="deno-stderr", daemon=True)
        self._listener.start()
        with suppress(OSError):  # the process is gone; the first answer reports it
            self._write(self._wire.token)

    def _limit(self, heap: int) -> None:
        """Limit the memory of the process outside V8's heap: buffers, and WebAssembly memory."""
        most = (2 * heap + _OUTSIDE_MEGABYTES + _CORE_MEGABYTES * (os.cpu_count() or 1)) << 20
        with suppress(OSError, AttributeError):  # Linux only; elsewhere only the heap is limited
            resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (most, most))

    def _limit_time(self, seconds: float) -> None:
        """Limit the processor time of the process from now on, in case its parent dies and cannot end it."""
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
        """Return the process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
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
        """Send a question, and return the text of its answer; empty if the process is gone.

        Raises:
            Late: no answer came within `seconds`.
            Foreign: bytes that are not a frame came.
        """
        try:
            self.send(dump_exact(question))
        except OSError:
            return b""
        return self.receive(seconds)

    def receive(self, seconds: float) -> bytes:
        """Return the text of the next answer; empty if the process is gone.

        Messages of the module go to the log.

        Raises:
            Late: no answer came within `seconds`.
            Foreign: bytes that are not a frame came.
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
        """Kill the process if it runs; return its exit status, and the last lines of its standard error."""
        if self.alive:
            self._process.kill()
        status = self._process.wait()
        self._listener.join(_PATIENCE)
        # A descriptor closed while a thread sends might be reused by the next process. The pending write fails
        # because the reader is gone, unless a fork keeps the other end: then the descriptor stays open.
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
        """Forget a process that belongs to the parent of this fork."""
        self._process.returncode = 0
        os.close(self._stderr)

    def _listen(self) -> None:
        """Keep the end of standard error, where Deno explains why it ends."""
        while chunk := os.read(self._stderr, 1 << 16):
            self._tail += chunk
            del self._tail[:-_TAIL_BYTES]
        os.close(self._stderr)


def command_of(spec: DerivationSpec, folder: Path) -> list[str]:
    """Return the command that runs a derivation's project in `folder`."""
    methods = [method_of(transform.name) for transform in spec.transforms]
    net = bool(config_of(spec).permissions.net) and spec.limits.allows_permissions
    argument = orjson.dumps({"methods": methods, "net": net, "guarded": needs_guards(spec)}).decode()
    return [deno(), "run", *command_line(spec), str(folder / "main.ts"), argument]


def _working_folder(spec: DerivationSpec, folder: Path) -> Path:
    """Return the working folder: beside the catalog for a module with permission to read there."""
    permissions = config_of(spec).permissions
    beside = permissions.folder
    return Path(beside) if permissions.read and beside and Path(beside).is_dir() else folder


def _unheard(level: Level, message: str) -> None:
    """Ignore a message that arrives before a session is open."""
