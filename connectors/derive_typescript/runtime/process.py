"""A running Deno process: frames sent and received over its wire, and idle processes between sessions.

A frame has a token that only this process and the harness know at its begin and at its end, and its length in between.
So bytes that a module writes are detected before they are stored, and bytes written inside a frame invalidate the
frame.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import resource
import secrets
import select
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import orjson

from connectors.derive_typescript.author_files import method_of
from connectors.derive_typescript.config import config_of
from connectors.derive_typescript.runtime.command import command_line, deno, environment, needs_guards
from connectors.derive_typescript.runtime.project import project_folder
from derive.document.exact import dump_exact
from derive.protocol.derive import Level, Log, ReadBatch
from derive.protocol.specs import DerivationSpec

_TOKEN_BYTES = 16
_LENGTH_BYTES = 6
_HEAD_BYTES = _TOKEN_BYTES + 1 + _LENGTH_BYTES
_READ_BYTES = 1 << 16
"""Number of bytes of one read; larger reads would allocate and release system memory for each answer."""

ANSWER, LOG = b"A", b"L"
"""Kinds of frames."""

_MOST_BYTES = 3 << 29
"""Maximum size of a frame: the longest V8 string in UTF-8."""

_SHOWN_BYTES = 100


class Late(Exception):
    """No answer has arrived within the time limit."""


class Foreign(Exception):
    """Bytes that are not a frame have arrived: the module wrote to its output; `args` has the first bytes."""


class Wire:
    """Frames of one process.

    Args:
        descriptor: the pipe to read from.
        token: the token of the process.

    Attributes:
        token: the token of the process, which is the first message to it.
    """

    def __init__(self, descriptor: int, token: bytes | None = None) -> None:
        self.token = token or secrets.token_bytes(_TOKEN_BYTES)
        self._descriptor = descriptor
        self._poll = select.poll()  # unlike `select`, it takes descriptors above 1023
        self._poll.register(descriptor, select.POLLIN)
        self._read = bytearray()

    def framed(self, text: bytes) -> bytes:
        """Return a text as a frame to send."""
        return b"".join((self.token, ANSWER, len(text).to_bytes(_LENGTH_BYTES, "big"), text))

    def receive(self, deadline: float) -> tuple[bytes, bytes]:
        """Return the kind and the text of the next frame; both are empty if the process has ended.

        Args:
            deadline: time of the monotonic clock, in seconds.

        Raises:
            Late: no frame came before the deadline.
            Foreign: bytes that are not a frame came.
        """
        if not self._reads(_HEAD_BYTES, deadline):
            if not self.token.startswith(self._read[:_TOKEN_BYTES]):
                raise self._foreign(0)
            return b"", b""
        head = bytes(self._read[:_HEAD_BYTES])
        kind, length = head[_TOKEN_BYTES : _TOKEN_BYTES + 1], int.from_bytes(head[-_LENGTH_BYTES:], "big")
        if not head.startswith(self.token) or kind not in (ANSWER, LOG) or length > _MOST_BYTES:
            raise self._foreign(0)
        end = _HEAD_BYTES + length
        if not self._reads(end + _TOKEN_BYTES, deadline):
            return b"", b""
        if not self._read.startswith(self.token, end):  # the module wrote in the middle of the frame
            raise self._foreign(_HEAD_BYTES)
        with memoryview(self._read) as read:
            text = bytes(read[_HEAD_BYTES:end])
        del self._read[: end + _TOKEN_BYTES]
        return kind, text

    def _reads(self, count: int, deadline: float) -> bool:
        """Read until `count` bytes are available; return False if the process ends before that."""
        while len(self._read) < count:
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise Late
            chunk = os.read(self._descriptor, _READ_BYTES)
            if not chunk:
                return False
            self._read += chunk
        return True

    def _foreign(self, begin: int) -> Foreign:
        written = bytes(self._read[begin:]).partition(self.token)[0]
        return Foreign(written[:_SHOWN_BYTES])


_TAIL_BYTES = 4_000
_PIPE_BYTES = 1 << 20

_OUTSIDE_MEGABYTES, _CORE_MEGABYTES = 1024, 32
"""Address space that Deno itself reserves, fixed and per core: about 550 MB on two cores, mostly unused."""

_PROCESSORS = 4
"""Maximum average number of processors that Deno may keep busy; one thread runs the module."""

_RENEWED_SECONDS = 1.0
"""Interval between renewals of the processor time limit; a renewal takes longer than the read of a short answer."""

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
        version: version of its state; None if its module keeps no state.
        shard: name of the state's shard.
        abilities: for each of `flush`, `startCommit` and `reset`, whether the class overrides it; set by the first
            session.
    """

    def __init__(self, spec: DerivationSpec, digest: str) -> None:
        self.log: Log = _unheard
        self.version: str | None = None
        self.shard = ""
        self.abilities: dict[str, bool] = {}
        # Not a pipe of Popen: a fork would copy the lock of the pipe, which the waiting thread holds, and would
        # block forever.
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
            with suppress(OSError, AttributeError):  # Linux only; on other systems, pipes keep their size
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._sending = threading.Lock()  # held while a line is sent, and while the descriptor is closed
        self._ended = False
        self._wire = Wire(self._stdout)
        self._tail = bytearray()
        self._listener = threading.Thread(target=self._listen, name="deno-stderr", daemon=True)
        self._listener.start()
        with suppress(OSError):  # the process has ended; the first answer reports this
            self._write(self._wire.token)

    def _limit(self, heap: int) -> None:
        """Limit the memory of the process outside V8's heap: buffers, and WebAssembly memory."""
        most = (2 * heap + _OUTSIDE_MEGABYTES + _CORE_MEGABYTES * (os.cpu_count() or 1)) << 20
        with suppress(OSError, AttributeError):  # Linux only; on other systems, only the heap is limited
            resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (most, most))

    def _limit_time(self, seconds: float) -> None:
        """Limit the processor time of the process from now on, so that the process ends after a kill of its parent."""
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
        """Send a question, and return the text of its answer; empty if the process has ended.

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
        """Return the text of the next answer; empty if the process has ended.

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
        """Forget the process, because it belongs to the parent process of this fork."""
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
    """Ignore a message that arrives before a session is opened."""


_LIMIT = 8
"""Maximum number of idle processes."""


class Pool:
    """Idle processes, oldest first, by the digest of their project."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[str, DenoProcess]] = []

    def take(self, digest: str, version: str | None, shard: str = "") -> DenoProcess | None:
        """Return the idle process of this project that was used last; None if there is none.

        A module may keep a part of its state in variables that no constructor clears. So the process of a module with
        state is reused only for the version that it has committed; or for an empty state, if the module has `reset`. A
        process that served this shard at another version was rolled back, and is ended.

        Args:
            digest: digest of the project.
            version: version of the committed state; None if there is none.
            shard: name of the state's shard; empty without a shard.
        """
        with self._lock:
            stale = [
                process
                for _, process in self._idle
                if shard and process.shard == shard and not _continues(process, version)
            ]
            self._idle = [waiting for waiting in self._idle if waiting[1] not in stale]
        for process in stale:
            process.end()
        with self._lock:
            places = [
                index
                for index, (waiting, process) in enumerate(self._idle)
                if waiting == digest and _continues(process, version)
            ]
            return self._idle.pop(places[-1])[1] if places else None

    def give(self, digest: str, process: DenoProcess) -> None:
        """Return a process to the pool after it has answered all frames."""
        with self._lock:
            self._idle.append((digest, process))
            surplus = [self._idle.pop(0)[1]] if len(self._idle) > _LIMIT else []
        for oldest in surplus:
            oldest.end()

    def close(self) -> None:
        """End all idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, process in idle:
            process.end()

    def forget(self) -> None:
        """Drop the processes after a fork, because the processes and the holder of the lock belong to the parent."""
        self._lock = threading.Lock()
        idle, self._idle = self._idle, []
        for _, process in idle:
            process.abandon()


def _continues(process: DenoProcess, version: str | None) -> bool:
    if process.version is None or process.version == version:
        return True
    return version is None and process.abilities["reset"]


POOL = Pool()
"""The pool of this Python process."""

atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.forget)


FRAME_DOCUMENTS = 250
"""Number of documents that Deno processes before its garbage collector runs.

With 1,000, each document takes 50 % longer.
"""

_FIRST_FRAME = 100
_FRAME_BYTES = 4_000_000


def send_batch(process: DenoProcess, batch: ReadBatch, ends: list[int], as_columns: bool) -> None:
    """Send a batch in frames with limits: a number of documents, and bytes as estimated from the previous frame.

    Args:
        process: the receiving process.
        batch: the batch.
        ends: list to which the index after the last document of each frame is added before the frame is sent.
        as_columns: whether to ask for columns if documents have the same properties.
    """
    begin = 0
    count = _FIRST_FRAME
    while begin < len(batch.documents):
        frame = frame_of(batch, slice(begin, begin + count), as_columns=as_columns)
        ends.append(min(begin + count, len(batch.documents)))
        try:
            process.send(frame)
        except (OSError, ValueError):
            return  # the process has ended or was closed; the reader of its answers reports this
        begin += count
        count = max(1, min(FRAME_DOCUMENTS, count * _FRAME_BYTES // len(frame)))


def frame_of(batch: ReadBatch, part: slice, *, as_columns: bool) -> bytes:
    """Return the frame of a part of a batch; `published` is omitted if it equals `clocks`."""
    clocks, published = batch.clocks[part], batch.published[part]
    frame: dict[str, Any] = {"transforms": batch.transforms[part], "clocks": clocks}
    if as_columns:
        frame["columns"] = True
    if part.stop >= len(batch.documents):
        frame["last"] = True
    if published != clocks:
        frame["published"] = published
    documents = batch.written(part) if batch.written else dump_exact(batch.documents[part])
    return b'%b,"documents":%b}' % (dump_exact(frame)[:-1], documents)
