"""A session: one Deno process that answers frames of documents with frames of published documents."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import orjson

from connectors.derive_typescript.place import authored, member_position, position_in
from connectors.derive_typescript.pool import POOL
from connectors.derive_typescript.process import HEAP_MEGABYTES, DenoProcess
from connectors.derive_typescript.project import module_of
from connectors.derive_typescript.types import method_of
from derive.document.exact import dump_exact
from derive.errors import LambdaError
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec, Document

_FIRST_FRAME = 100
_FRAME_DOCUMENTS = 1_000
_FRAME_BYTES = 4_000_000


class TypeScriptSession:
    """Methods of a derivation's class, running under Deno. The process starts with the first batch."""

    def __init__(self, spec: DerivationSpec) -> None:
        self._spec = spec
        self._module = module_of(spec)
        self._process: DenoProcess | None = None
        self._unanswered = False

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the methods over a batch, in frames; a thread sends them while the answers are read.

        Raises:
            LambdaError: a method failed, published what is no document, or ended the process.
        """
        if not batch.documents:
            return
        process = self._open()
        self._unanswered = True
        sender = threading.Thread(target=_send, args=(process, batch), name="deno-stdin", daemon=True)
        sender.start()
        place = 0
        while place < len(batch.documents):
            for documents in self._receive(process, batch, place):
                for document in documents:
                    if type(document) is not dict:
                        raise self._failed(batch, place, f"it published {_short(document)}, which is no document")
                    yield place, document
                place += 1
        sender.join()
        self._unanswered = False

    def prepare_commit(self) -> None:
        """A module keeps no state yet."""

    def close(self) -> None:
        """Leave the process to the next session, or end it where it still owes an answer."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._unanswered or not process.alive:
            process.end()
        else:
            POOL.give(self._spec, process)

    def _open(self) -> DenoProcess:
        """The process, with an instance of the class that belongs to this session."""
        if self._process is not None:
            return self._process
        self._unanswered = True
        process, answer = self._begin()
        reply = self._parse(process, answer)
        if isinstance(reply, dict):
            reason = authored(self._module, reply["message"])
            raise LambdaError(
                f"the TypeScript module of '{self._spec.name}' cannot start: {reason}",
                position=position_in(self._module, reply["stack"]) or self._module.position,
            )
        self._unanswered = False
        return process

    def _begin(self) -> tuple[DenoProcess, bytes]:
        waiting = self._process = POOL.take(self._spec)
        if waiting is not None:
            answer = waiting.begin()
            if answer:
                return waiting, answer
            waiting.end()  # it died while it waited
        process = self._process = DenoProcess(self._spec)
        return process, process.begin()

    def _receive(self, process: DenoProcess, batch: ReadBatch, place: int) -> list[list[Any]]:
        """What each document of the next frame, which begins at `place`, published."""
        reply = self._parse(process, process.receive())
        if isinstance(reply, dict):
            raise self._failed(batch, place + reply["index"], reply["message"], reply["stack"])
        return reply

    def _parse(self, process: DenoProcess, line: bytes) -> list[Any] | dict[str, Any]:
        try:
            reply: Any = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise self._gone(process, line) from None
        if isinstance(reply, list | dict):
            return reply
        raise self._gone(process, line)

    def _gone(self, process: DenoProcess, line: bytes) -> LambdaError:
        status, said = process.end()
        what = f"ended with status {status}{': ' if said else ''}{authored(self._module, said)}"
        if line.endswith(b"\n"):
            what = f"answered with something else than a frame: {line[:100]!r}"
        elif "out of memory" in said:
            what = f"needs more memory than the {HEAP_MEGABYTES} MB it may use"
        return LambdaError(
            f"the TypeScript module of '{self._spec.name}' {what}",
            position=position_in(self._module, said) or self._module.position,
        )

    def _failed(self, batch: ReadBatch, place: int, reason: str, stack: str = "") -> LambdaError:
        transform = self._spec.transforms[batch.transforms[place]]
        position = position_in(self._module, stack) or member_position(self._module, method_of(transform.name))
        return LambdaError(
            f"transform '{transform.name}' of '{self._spec.name}' failed:"
            f" {authored(self._module, reason)[:2_000]}; the document was {_short(batch.documents[place])}",
            position=position,
        )


def _send(process: DenoProcess, batch: ReadBatch) -> None:
    """Send a batch in frames, bounded in documents and, as far as the last frame tells, in bytes."""
    begin = 0
    count = _FIRST_FRAME
    while begin < len(batch.documents):
        part = slice(begin, begin + count)
        frame = dump_exact(
            {
                "transforms": batch.transforms[part],
                "clocks": batch.clocks[part],
                "published": batch.published[part],
                "documents": batch.documents[part],
            }
        )
        try:
            process.send(frame)
        except (OSError, ValueError):
            return  # the process is gone or closed, which the reader of its answers reports
        begin += count
        count = max(1, min(_FRAME_DOCUMENTS, count * _FRAME_BYTES // len(frame)))


def _short(value: Any) -> str:
    text = dump_exact(value).decode()
    return text if len(text) <= 500 else f"{text[:500]}…"
