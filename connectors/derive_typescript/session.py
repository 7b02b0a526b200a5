"""A session: one Deno process that answers frames of documents with frames of published documents."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from connectors.derive_typescript.project import HEAP_MEGABYTES, deno, environment, write_project
from connectors.derive_typescript.types import method_of
from derive.errors import FlowError, LambdaError
from derive.position import Position, Script
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec, Document

_FRAME = 1_000


class TypeScriptSession:
    """Methods of a derivation's class, running under Deno. The process starts with the first batch."""

    def __init__(self, spec: DerivationSpec) -> None:
        self._spec = spec
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = bytearray()

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the methods over a batch, in frames; a thread sends them while the replies are read."""
        if not batch.documents:
            return
        process = self._started()
        begins = range(0, len(batch.documents), _FRAME)
        sender = threading.Thread(target=self._send, args=(process, batch, begins), daemon=True)
        sender.start()
        assert process.stdout is not None
        for begin in begins:
            line = process.stdout.readline()
            reply = self._parse(line, batch, begin)
            for place, documents in enumerate(reply, start=begin):
                for document in documents:
                    if type(document) is not dict:
                        raise self._failure(batch, place, f"it published {str(document)[:100]!r}, which is no document")
                    yield place, document
        sender.join()

    @staticmethod
    def _send(process: subprocess.Popen[bytes], batch: ReadBatch, begins: range) -> None:
        assert process.stdin is not None
        try:
            for begin in begins:
                part = slice(begin, begin + _FRAME)
                frame = {
                    "transforms": batch.transforms[part],
                    "clocks": batch.clocks[part],
                    "documents": batch.documents[part],
                }
                process.stdin.write(orjson.dumps(frame) + b"\n")
                process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # Deno is gone, which the reader of the replies reports

    def _parse(self, line: bytes, batch: ReadBatch, begin: int) -> list[Any]:
        try:
            reply = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise self._died(line) from None
        if isinstance(reply, dict):
            raise self._failure(batch, begin + reply["index"], reply["message"], reply["stack"])
        return list(reply)

    def _died(self, line: bytes) -> FlowError:
        assert self._process is not None
        self._process.kill()
        code = self._process.wait()
        said = self._errors.decode(errors="replace").strip()[-500:]
        what = f"wrote something else to its standard output: {line[:100]!r}" if line else f"ended with status {code}"
        module = self._spec.module
        return LambdaError(
            f"the TypeScript module of '{self._spec.name}' {what}{': ' if said else ''}{said}",
            position=module.position if module else None,
        )

    def _failure(self, batch: ReadBatch, place: int, reason: str, stack: str = "") -> LambdaError:
        transform = self._spec.transforms[batch.transforms[place]]
        shown = orjson.dumps(batch.documents[place]).decode()[:1000]
        assert self._spec.module is not None
        return LambdaError(
            f"the method '{method_of(transform.name)}' of '{self._spec.name}' failed: {reason};"
            f" the document was {shown}",
            position=position_in(self._spec.module, stack),
        )

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._folder = write_project(self._spec)
            methods = [method_of(each.name) for each in self._spec.transforms]
            command = [deno(), "run", "--no-check", "--no-prompt", "--no-remote", "--quiet"]
            command += [f"--v8-flags=--max-old-space-size={HEAP_MEGABYTES}", "main.ts"]
            command.append(orjson.dumps({"methods": methods}).decode())
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            threading.Thread(target=self._collect_errors, daemon=True).start()
        return self._process

    def _collect_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors += line
            del self._errors[:-10_000]

    def prepare_commit(self) -> None:
        """A module keeps no state yet."""

    def close(self) -> None:
        """End the process, and remove its folder."""
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process.kill()
            self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def position_in(module: Script, text: str) -> Position:
    """The author's place that a message or stack of Deno's names; the module's beginning if it names none."""
    found = re.search(r"/module\.ts:(\d+):(\d+)", text)
    if not found:
        return module.position
    line, column = int(found[1]), int(found[2])
    before = module.text.split("\n")[: line - 1]
    return module.locate(sum(len(each) + 1 for each in before) + column - 1)
