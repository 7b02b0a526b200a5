"""Frames between the harness and `flowctl`, over pipes that the author's module does not know.

`connectors.module_kit.process` describes a frame. Descriptor 0 becomes the null device and descriptor 1 becomes
standard error before the module is loaded, so that neither `print` nor a library writes between frames.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final

_TOKEN_BYTES: Final = 16
_HEAD_BYTES: Final = _TOKEN_BYTES + 1 + 6
_READ_BYTES: Final = 1 << 16

ANSWER, LOG, QUESTION = b"A", b"L", b"Q"
"""Kinds of frames: an answer, a message for the log, and a question to `flowctl`."""

_CLOSED_STATUS: Final = 97
"""Exit status after the module has closed a pipe; `connectors.module_kit.session` explains it."""

_read, _readv, _write, _exit = os.read, os.readv, os.write, os._exit


class Frames:
    """The two pipes of this process; the constructor takes them from descriptors 0 and 1."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self._held = bytearray()
        self._sending = threading.RLock()
        self._is_writing = False
        self._unsent: deque[memoryview] = deque()
        self._early: list[tuple[bytes, bytes | bytearray]] = []
        self._token = bytes(self._take(_TOKEN_BYTES) or b"")

    def receive(self) -> bytes | bytearray | None:
        """Return the text of the next frame; None at the end of the input."""
        if self._early:
            return self._early.pop(0)[1]
        frame = self._frame()
        return None if frame is None else frame[1]

    def ask(self, text: bytes) -> bytes | bytearray:
        """Send a question, and return its answer; frames that arrive before the answer are kept for `receive`.

        Raises:
            EOFError: the input has ended.
        """
        self.send(QUESTION, text)
        while (frame := self._frame()) is not None:
            if frame[0] == QUESTION:
                return frame[1]
            self._early.append(frame)
        raise EOFError

    def send(self, kind: bytes, text: bytes) -> None:
        """Write a frame; threads take turns, and a finalizer that runs during a write adds its frame after it."""
        self._unsent.append(memoryview(b"".join((self._token, kind, len(text).to_bytes(6, "big"), text, self._token))))
        with self._sending:
            if self._is_writing:
                return
            self._is_writing = True
            try:
                while self._unsent:
                    rest = self._unsent.popleft()
                    while rest:
                        rest = rest[_write(self._output, rest) :]
            except OSError:
                _exit(_CLOSED_STATUS)
            finally:
                self._is_writing = False

    def _frame(self) -> tuple[bytes, bytes | bytearray] | None:
        try:
            head = self._take(_HEAD_BYTES)
            if head is None:
                return None
            if not head.startswith(self._token):
                raise RuntimeError("the module read from the pipe of the runtime")
            text = self._take(int.from_bytes(head[-6:], "big"))
        except OSError:
            _exit(_CLOSED_STATUS)
        return None if text is None else (bytes(head[_TOKEN_BYTES : _TOKEN_BYTES + 1]), text)

    def _take(self, count: int) -> bytes | bytearray | None:
        held = self._held
        if count > _READ_BYTES:
            return self._take_long(count)
        while len(held) < count:
            chunk = _read(self._input, _READ_BYTES)
            if not chunk:
                return None
            held += chunk
        with memoryview(held) as view:
            taken = bytes(view[:count])
        del held[:count]
        return taken

    def _take_long(self, count: int) -> bytearray | None:
        """Return the next bytes without a copy of those that are still to be read."""
        held = self._held
        taken = bytearray(count)
        begin = min(count, len(held))
        taken[:begin] = held[:begin]
        del held[:begin]
        rest = memoryview(taken)[begin:]
        while rest:
            length = _readv(self._input, [rest])
            if not length:
                return None
            rest = rest[length:]
        return taken
