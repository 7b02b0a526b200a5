"""Frames between the runtime and the process of a derivation's module.

A frame has a token that only this process and the harness know at its begin and at its end, and its length in between.
So bytes that a module writes are detected before they are stored, and bytes written inside a frame invalidate the
frame.
"""

from __future__ import annotations

import os
import secrets
import select
import time

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

    def framed(self, text: bytes, kind: bytes = ANSWER) -> bytes:
        """Return a text as a frame to send."""
        return b"".join((self.token, kind, len(text).to_bytes(_LENGTH_BYTES, "big"), text))

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
