"""A running Deno: frames in, frames out, and what it last said where it does not answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from contextlib import suppress

import orjson

from connectors.derive_typescript.project import deno, environment, write_project
from connectors.derive_typescript.types import method_of
from derive.protocol.specs import DerivationSpec

HEAP_MEGABYTES = 512
"""How large the heap of a module may grow."""

_BEGIN = b"{}"
_TAIL_BYTES = 4_000
_PATIENCE = 5.0
"""Seconds to wait for the end of a process that was killed."""


class DenoProcess:
    """The harness with one derivation's module, without permission to touch anything but its pipes.

    One thread may send while another receives.
    """

    def __init__(self, spec: DerivationSpec) -> None:
        self._folder = write_project(spec)
        methods = [method_of(each.name) for each in spec.transforms]
        command = [deno(), "run", "--no-check", "--no-prompt", "--no-remote", "--no-npm", "--quiet"]
        command += [f"--v8-flags=--max-old-space-size={HEAP_MEGABYTES}", "main.ts"]
        command.append(orjson.dumps({"methods": methods}).decode())
        pipe = subprocess.PIPE
        # Not a pipe of Popen's: a fork would copy its lock, held by the thread that waits, and never get past it.
        self._stderr, child = os.pipe()
        try:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environment(), stdin=pipe, stdout=pipe, stderr=child
            )
        finally:
            os.close(child)
        self._tail = bytearray()
        self._listener = threading.Thread(target=self._listen, name="deno-stderr", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def send(self, frame: bytes) -> None:
        """Send a frame: one line of JSON.

        Raises:
            OSError: the process is gone.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(frame + b"\n")
        self._process.stdin.flush()

    def receive(self) -> bytes:
        """The next answer; empty if the process is gone."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def begin(self) -> bytes:
        """Begin a session, with an instance of its own; the answer, which is empty if the process is gone."""
        try:
            self.send(_BEGIN)
        except OSError:
            return b""
        answer = self.receive()
        shutil.rmtree(self._folder, ignore_errors=True)  # the module is loaded
        return answer

    def end(self) -> tuple[int, str]:
        """End the process if it still runs; its exit status, and the last lines of its standard error."""
        if self.alive:
            self._process.kill()
        status = self._process.wait()
        self._listener.join(_PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was still to be flushed has no reader any more
                    stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return status, self._tail.decode("utf-8", "replace").strip()

    def abandon(self) -> None:
        """Forget a process that a fork of this one copied, and that belongs to the original."""
        self._process.returncode = 0
        os.close(self._stderr)

    def _listen(self) -> None:
        """Pass standard error on, which is where a module's `console.log` goes, and keep the last of it."""
        while chunk := os.read(self._stderr, 1 << 16):
            self._tail += chunk
            del self._tail[:-_TAIL_BYTES]
            with suppress(OSError):  # perhaps nobody listens
                os.write(2, chunk)
        os.close(self._stderr)
