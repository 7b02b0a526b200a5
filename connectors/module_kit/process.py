"""A running process with a derivation's module, its frames, and idle processes between sessions.

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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any, get_args

import orjson

from derive.document.exact import dump_exact
from derive.protocol.derive import Level, Log, ReadBatch

_TOKEN_BYTES = 16
_LENGTH_BYTES = 6
_HEAD_BYTES = _TOKEN_BYTES + 1 + _LENGTH_BYTES
_READ_BYTES = 1 << 16
"""Number of bytes of one read; larger reads would allocate and release system memory for each answer."""

ANSWER, LOG, QUESTION = b"A", b"L", b"Q"
"""Kinds of frames: documents or their answer, a message for the log, and a question of the harness or its answer."""

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

    def head(self, length: int, kind: bytes = ANSWER) -> bytes:
        """Return the bytes before a text of a frame to send."""
        return b"".join((self.token, kind, length.to_bytes(_LENGTH_BYTES, "big")))

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
        if not head.startswith(self.token) or kind not in (ANSWER, LOG, QUESTION) or length > _MOST_BYTES:
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

_PROCESSORS = 4
"""Maximum average number of processors that a process may keep busy; one thread runs the module."""

_RENEWED_SECONDS = 1.0
"""Interval between renewals of the processor time limit; a renewal takes longer than the read of a short answer."""

_PATIENCE = 5.0
"""Seconds to wait for the end of a killed process."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The command of a process.

    Attributes:
        name: name of the runtime for messages, such as `Deno`.
        command: the program and its arguments.
        folder: the working folder.
        environment: all environment variables.
        megabytes: limit of the process's memory.
        hang_signal: signal at which the runtime writes its stack to standard error, and ends; None without one.
    """

    name: str
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    megabytes: int
    hang_signal: int | None = None


_ENDING_SECONDS = 2.0
"""Seconds after the end of the output until a process has ended, unless its module has closed the output."""

_EXPLAINED_SECONDS = 2.0
"""Seconds to wait for the stack of a process that hangs."""


class ModuleProcess:
    """The harness of a language with one derivation's module, whose only permission is to use its pipes.

    One thread may send while another receives.

    Args:
        launch: the command.

    Attributes:
        log: receives the module's messages.
        answer_question: returns the answer to a question of the harness; None if the harness asks none.
        version: version of its state; None if its module keeps no state.
        shard: name of the state's shard.
        abilities: for each of `flush`, `startCommit` and `reset`, whether the class has it; set by the first session.
    """

    def __init__(self, launch: Launch) -> None:
        self.log: Log = _unheard
        self.answer_question: Callable[[bytes], bytes] | None = None
        self.version: str | None = None
        self.shard = ""
        self.abilities: dict[str, bool] = {}
        self._name, self._hang_signal = launch.name, launch.hang_signal
        # Not a pipe of Popen: a fork would copy the lock of the pipe, which the waiting thread holds, and would
        # block forever.
        self._stderr, child = os.pipe()
        try:
            self._process = Popen(
                launch.command,
                cwd=launch.folder,
                env=launch.environment,
                stdin=PIPE,
                stdout=PIPE,
                stderr=child,
                bufsize=0,
            )
        finally:
            os.close(child)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._limit(launch.megabytes)
        self._limited_until = 0.0  # monotonic clock
        for descriptor in (self._stdin, self._stdout):
            with suppress(OSError, AttributeError):  # Linux only; on other systems, pipes keep their size
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._sending = threading.Lock()  # held while a line is sent, and while the descriptor is closed
        self._ended = False
        self._wire = Wire(self._stdout)
        self._tail = bytearray()
        self._listener = threading.Thread(target=self._listen, name=f"{launch.name}-stderr", daemon=True)
        self._listener.start()
        with suppress(OSError):  # the process has ended; the first answer reports this
            self._write(self._wire.token)

    def _limit(self, megabytes: int) -> None:
        most = megabytes << 20
        with suppress(OSError, AttributeError):  # Linux only; on other systems, the runtime limits its heap
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

    def lives_on(self) -> bool:
        """Return whether the process runs on although its output has ended."""
        try:
            self._process.wait(_ENDING_SECONDS)
        except TimeoutExpired:
            return True
        return False

    def send(self, *parts: bytes | memoryview) -> None:
        """Send a frame of one text or several parts of it, which are not copied.

        Raises:
            OSError: the process is gone.
        """
        self._write(self._wire.head(sum(map(len, parts))), *parts)

    def takes(self, *parts: bytes | memoryview) -> bool:
        """Return whether a frame fits into the pipe: `send` then does not wait for the answer to the frame before."""
        room = select.PIPE_BUF
        with suppress(OSError, AttributeError):  # Linux only
            room = fcntl.fcntl(self._stdin, fcntl.F_GETPIPE_SZ) // 2
        return _HEAD_BYTES + sum(map(len, parts)) <= room

    def _write(self, *parts: bytes | memoryview) -> None:
        with self._sending:
            if self._ended:
                raise BrokenPipeError(errno.EPIPE, f"the {self._name} process was ended")
            for part in parts:
                rest = memoryview(part)
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
            if kind not in (LOG, QUESTION) or (kind == QUESTION and self.answer_question is None):
                return text
            try:
                if kind == QUESTION:
                    self._answer(text)
                else:
                    level, message = orjson.loads(text)
                    if level in get_args(Level):
                        self.log(level, str(message))
            except (TypeError, ValueError):  # a module has replaced functions of its runtime
                raise Foreign(text[:100]) from None
            if time.monotonic() > deadline:  # a module that writes all the time
                raise Late

    def _answer(self, question: bytes) -> None:
        assert self.answer_question is not None
        answer = self.answer_question(question)
        with suppress(OSError):  # the process has ended, which the next read reports
            self._write(self._wire.head(len(answer), QUESTION), answer)

    def end(self, *, explain: bool = False) -> tuple[int, str]:
        """Kill the process if it runs; return its exit status, and the last lines of its standard error.

        Args:
            explain: whether the runtime first writes its stack to standard error, if it can.
        """
        if explain and self._hang_signal is not None and self.alive:
            self._process.send_signal(self._hang_signal)
            with suppress(TimeoutExpired):
                self._process.wait(_EXPLAINED_SECONDS)
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
        """Keep the end of standard error, where the runtime explains why the process ends."""
        while chunk := os.read(self._stderr, 1 << 16):
            self._tail += chunk
            del self._tail[:-_TAIL_BYTES]
        os.close(self._stderr)


def _unheard(level: Level, message: str) -> None:
    """Ignore a message that arrives before a session is opened."""


_LIMIT = 8
"""Maximum number of idle processes."""


class Pool:
    """Idle processes, oldest first, by the digest of their project."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[str, ModuleProcess]] = []

    def take(self, digest: str, version: str | None, shard: str = "") -> ModuleProcess | None:
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

    def give(self, digest: str, process: ModuleProcess) -> None:
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


def _continues(process: ModuleProcess, version: str | None) -> bool:
    if process.version is None or process.version == version:
        return True
    return version is None and process.abilities["reset"]


POOL = Pool()
"""The pool of this Python process, for all languages."""

atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.forget)


FRAME_DOCUMENTS = 250
"""Number of documents of a frame.

The garbage collector of Deno runs between frames. With 1,000, each document takes 50 % longer.
"""

_FIRST_FRAME = 100
_FRAME_BYTES = 4_000_000


def send_batch(process: ModuleProcess, batch: ReadBatch, ends: list[int], as_columns: bool) -> None:
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
