"""A session: one process that answers frames of documents with frames of publications, and its state."""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from connectors.module_kit.process import POOL, Foreign, Late, ModuleProcess, send_batch
from connectors.module_kit.published import (
    AnsweredColumns,
    AnsweredDocuments,
    Broken,
    fault_in,
    gathered,
)
from connectors.module_kit.state import State
from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON
from derive.errors import Fact, FlowError, Issue, LambdaError, LostError, Rejection, document_fact
from derive.position import Position, Script
from derive.protocol.derive import Log, PublishedColumns, PublishedDocuments, ReadBatch
from derive.protocol.specs import DerivationSpec, Document

if TYPE_CHECKING:
    import apsw

_SKIPPED = {"skipped": True}
"""Answer to documents after a failed one, which the process does not run."""

_MOST_REPEATED = 1_000
"""Number of documents from which the state is committed, so that they need not be repeated after a failure."""

_BATCH_DOCUMENTS = 40_000
"""Number of documents of a batch; larger ones take more memory, and are hardly faster."""

_CLOSED_STATUS = 97
"""Exit status of a harness whose module has closed a pipe."""

_KILLED = (-signal.SIGKILL, -signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Language:
    """The words of a language in messages, and the name of its table.

    Attributes:
        name: name of the language, such as `TypeScript`.
        runtime: name of the program that runs modules, such as `Deno`.
        state_table: table of a shard's database that keeps the state.
        commit_method: method of the class that returns the state.
        timeout_option: option of `flowctl` that limits the time for one document.
        log_hint: how a module writes to the task's log.
        start_seconds: least time limit for the start of a module, which loads its files and libraries.
    """

    name: str
    runtime: str
    state_table: str
    commit_method: str
    timeout_option: str
    log_hint: str
    start_seconds: float = 60.0


class ModuleSession(ABC):
    """Methods of a derivation's class, running in a process of its own. The process starts with the first batch.

    Args:
        spec: the derivation.
        database: the shard's database, inside an open transaction.
        log: receives the module's messages.
        module: the module of the class.
        digest: digest of all that determines the behaviour of a process.
        refusal: an issue if the run does not grant what the module asks for.
    """

    language: ClassVar[Language]

    answer_question: Callable[[bytes], bytes] | None = None
    """Answers a question of the harness from the shard's database; None if the harness asks none."""

    def __init__(
        self,
        spec: DerivationSpec,
        database: apsw.Connection,
        log: Log,
        module: Script,
        digest: str,
        refusal: Issue | None,
    ) -> None:
        self._spec = spec
        self._module = module
        if refusal:
            raise LambdaError(refusal.message, position=refusal.position, hint=refusal.hint)
        self._seconds = self._time_limit()
        self._what = f"the {self.language.name} module of '{spec.name}'"
        self._state = State(database, self.language.state_table)
        self._log = log
        self._digest = digest
        self._process: ModuleProcess | None = None
        self._ends: list[int] = []  # for each frame of the current batch, the index after its last document
        self._unanswered = False
        self._committed = False
        self._skipped = False  # whether frames after a failed one may still be answered
        self._sender: threading.Thread | None = None
        self._ran: list[ReadBatch] | None = [] if spec.quarantines else None  # batches since the committed state
        self._marked = 0

    @abstractmethod
    def _start(self) -> ModuleProcess:
        """Start a process of the module."""

    @abstractmethod
    def _time_limit(self) -> float:
        """Return the time limit for one document, in seconds."""

    @abstractmethod
    def _method_of(self, transform: str) -> str:
        """Return the name of the method that implements a transform."""

    @abstractmethod
    def _member_position(self, name: str) -> Position:
        """Return the position of a method in the module, or of the module."""

    @abstractmethod
    def _position_in(self, text: str) -> Position | None:
        """Return the author's innermost position that a stack names; None if it names none."""

    @abstractmethod
    def _authored(self, text: str) -> str:
        """Return a text of the process with the author's names of files, and without the frames of the harness."""

    @abstractmethod
    def _hint_of(self, message: str) -> str | None:
        """Return a hint for the message of a module that cannot start or has failed; None without one."""

    @property
    def batch_documents(self) -> int:
        """Return the number of documents of a batch, during which the process need not wait."""
        return _BATCH_DOCUMENTS

    @property
    def flushes(self) -> bool:
        """Return whether the class overrides `flush`, which is called at the end of each tick."""
        return self._open().abilities["flush"]

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the methods over a batch.

        Raises:
            LambdaError: a method failed, published an invalid document, did not answer, or ended the process.
        """
        for answer in self._answers(batch, as_columns=False):
            assert isinstance(answer, AnsweredDocuments)
            yield from zip(answer.causes, answer.documents, strict=True)

    def invoke_columns(self, batch: ReadBatch) -> Iterator[PublishedColumns | PublishedDocuments] | None:
        """Run the methods over a batch as columns; return None if the class has a `flush`.

        Documents of `flush` are sorted with all documents of the batch.
        """
        return None if self.flushes else self._gathered(batch)

    def _gathered(self, batch: ReadBatch) -> Iterator[PublishedColumns | PublishedDocuments]:
        try:
            yield from gathered(self._answers(batch, as_columns=True))
        except Broken as exc:
            process, fault = self._open(), exc.fault
            process.end()
            where = f"{fault.at(0)} of the published document {fault.reason}"
            raise self._failed(batch, exc.cause, where, "") from exc
        except ValueError as exc:
            raise self._gone(self._open(), f"columns: {exc}".encode()) from exc

    def _answers(self, batch: ReadBatch, *, as_columns: bool) -> Iterator[AnsweredDocuments | AnsweredColumns]:
        """Yield the published documents of each frame. A second thread sends frames while the answers are read."""
        if not batch.documents:
            return
        process = self._open()
        self._unanswered, self._committed = True, False
        self._ends = []
        if self._ran is not None:
            self._ran.append(batch)
        arguments = (process, batch, self._ends, as_columns)
        self._sender = threading.Thread(target=send_batch, args=arguments, name="deno-stdin", daemon=True)
        self._sender.start()
        index = 0
        while index < len(batch.documents):
            index, answer = self._receive(process, batch, index, as_columns=as_columns)
            yield answer
        self._sender.join()
        self._unanswered = False

    def mark(self) -> None:
        """Remember the number of batches since the committed state, which moves up where this is possible.

        A class with `flush` may hold documents of a tick in fields that `startCommit` does not return. So only the end
        of a tick is such a place.
        """
        if self._ran:
            abilities, last = self._open().abilities, self._ran[-1].transforms[-1]
            is_long = sum(len(batch.documents) for batch in self._ran) >= _MOST_REPEATED
            if not abilities["flush"] or last == len(self._spec.transforms):
                if not abilities["startCommit"]:
                    self._ran.clear()
                elif is_long:
                    self.prepare_commit()
        self._marked = len(self._ran or ())

    def keep(self) -> None:  # noqa: B027
        """Do nothing: all work is kept unless it is undone."""

    def undo(self) -> None:
        """Open another instance of the class over the committed state, and repeat the batches up to the mark.

        Raises:
            LambdaError: a method failed, or did not answer.
        """
        process, ran = self._process, (self._ran or [])[: self._marked]
        self._ran = []
        if process is not None and ((self._unanswered and not self._skipped) or not process.alive):
            process.end()
        if process is not None and process.alive:
            if self._sender is not None:
                self._sender.join()
            self._opened(process, self._ask(process, self._question()))
        else:
            self._process = None
            self._open()
        self._unanswered = self._skipped = False
        for batch in ran:
            for _ in self._answers(batch, as_columns=False):
                pass

    def given(self, transform: int, document: Document, published: int) -> dict[str, Any]:
        """Return no values: a method gets the whole document."""
        return {}

    def copied(self, transform: int) -> None:  # noqa: B027
        """Return None: methods are not analysed."""

    def state(self) -> JSON:
        """Return the state that the class would commit now; None for none."""
        self.prepare_commit()
        return None if self._state.version() is None else self._state.value()

    def prepare_commit(self) -> None:
        """Write the state that the class returns from `startCommit` into the database.

        Raises:
            LambdaError: the method failed, or returned an invalid state.
        """
        process = self._process
        if process is None or not process.abilities["startCommit"]:
            return
        self._unanswered = True
        reply = self._ask(process, {"commit": True})
        if "error" in reply:
            position = self._member_position(self.language.commit_method)
            raise self._refused(
                reply["error"], f"'{self.language.commit_method}' of '{self._spec.name}' failed", position
            )
        process.version = self._commit(reply["committed"])
        process.shard = self._state.place
        if self._ran is not None:
            self._ran.clear()
        self._unanswered = False
        self._committed = True

    def _commit(self, committed: Any) -> str:
        """Write the answer of the commit method, and return the version of the state."""
        return self._state.commit([] if committed is None else [committed])

    def close(self) -> None:
        """Return the process to the pool; end it if an answer is pending, or if its state is not committed."""
        process, self._process = self._process, None
        if process is None:
            return
        keeps_state = process.abilities.get("startCommit", True)
        if self._unanswered or not process.alive or (keeps_state and not self._committed):
            process.end()
        else:
            POOL.give(self._digest, process)

    def _open(self) -> ModuleProcess:
        """Return the process, with an instance of the class for this session."""
        if self._process is not None:
            return self._process
        self._unanswered = True
        return self._opened(*self._begin())

    def _opened(self, process: ModuleProcess, reply: dict[str, Any]) -> ModuleProcess:
        """Return the process after it has answered the message that opens a session."""
        if "error" in reply:
            raise self._refused(reply["error"], f"{self._what} cannot start", self._module.position)
        process.abilities = reply["opened"]
        if process.abilities["startCommit"] and not self._state.place:
            method = self.language.commit_method
            raise LambdaError(
                f"the class of '{self._spec.name}' inherits '{method}' from another file, and its module does not"
                " contain this word, so no shard would store the state",
                position=self._module.position,
                hint=f"define '{method}' in the module, or add a comment with it, such as '{method} is inherited'",
            )
        self._unanswered = False
        return process

    def _begin(self) -> tuple[ModuleProcess, dict[str, Any]]:
        """Return a process, and its answer to the message that opens a session."""
        question = self._question()
        waiting = self._process = POOL.take(self._digest, self._state.version(), self._state.place)
        if waiting is not None:
            waiting.log, waiting.answer_question = self._log, self.answer_question
            if reply := self._ask(waiting, question, may_be_gone=True):
                return waiting, reply
            waiting.end()  # the process died while idle
        process = self._process = self._start()
        process.log, process.answer_question = self._log, self.answer_question
        return process, self._ask(process, question)

    def _question(self) -> dict[str, Any]:
        """Return the message that opens a session over the committed state."""
        return {"open": {"state": self._state.value(), "forget": self._state.version() is None}}

    def _ask(self, process: ModuleProcess, question: dict[str, Any], *, may_be_gone: bool = False) -> dict[str, Any]:
        seconds = max(self._seconds, self.language.start_seconds) if "open" in question else self._seconds
        try:
            text = process.ask(question, seconds)
        except Late:
            position = self._position_of_hang(process) or self._module.position
            raise self._late(self._what, (), position, seconds) from None
        except Foreign as exc:
            process.end()
            raise self._wrote(self._what, (), self._module.position, exc) from None
        if not text and may_be_gone:
            return {}
        reply = self._parse(process, text)
        while self._skipped and reply == _SKIPPED:
            reply = self._parse(process, process.receive(self._seconds))
        if not isinstance(reply, dict) or reply.keys().isdisjoint(("opened", "committed", "error")):
            raise self._gone(process, text)
        if "error" in reply:
            self._error(process, text, reply)
        return reply

    def _receive(
        self, process: ModuleProcess, batch: ReadBatch, index: int, *, as_columns: bool
    ) -> tuple[int, AnsweredDocuments | AnsweredColumns]:
        """Return the results of the next answered documents, from `index` on, and the index after the last of them."""
        return self._answered(process, batch, index, self._text(process, batch, index), as_columns=as_columns)

    def _answered(
        self, process: ModuleProcess, batch: ReadBatch, index: int, text: bytes, *, as_columns: bool
    ) -> tuple[int, AnsweredDocuments | AnsweredColumns]:
        """Return the results in an answer, like `_receive`."""
        first, *texts = text.split(b"\n")
        try:
            reply = parse_exact(first)
        except ValueError:
            raise self._no_document(process, batch, index, text) from None
        most = len(batch.documents) - index
        if isinstance(reply, dict):
            if as_columns and _are_columns(reply) and 0 < len(reply["counts"]) <= most:
                if len(texts) != len(reply["columns"]):
                    raise self._gone_in(process, batch, index, text)
                causes = np.repeat(np.arange(index, index + len(reply["counts"])), reply["counts"])
                return index + len(reply["counts"]), AnsweredColumns(causes, tuple(reply["columns"]), tuple(texts))
            error = self._error(process, text, reply)
            if error["index"] >= most:
                raise self._gone_in(process, batch, index, text)
            self._skipped = True
            raise self._failed(batch, index + error["index"], error["message"], error["stack"])
        if isinstance(reply, list) and 0 < len(reply) <= most and _are_documents(reply):
            end = index + len(reply)
            listed = list(chain.from_iterable(map(repeat, range(index, end), map(len, reply))))
            return end, AnsweredDocuments(listed, list(chain.from_iterable(reply)))
        raise self._gone_in(process, batch, index, text)

    def _text(self, process: ModuleProcess, batch: ReadBatch, index: int) -> bytes:
        try:
            return process.receive(self._seconds)
        except Late:
            at = self._position_of_hang(process)
            name, facts, position = self._somewhere(batch, index)
            raise self._late(name, facts, at or position, self._seconds) from None
        except Foreign as exc:
            process.end()
            name, facts, position = self._somewhere(batch, index)
            raise self._wrote(name, facts, position, exc) from None

    def _error(self, process: ModuleProcess, text: bytes, reply: dict[str, Any]) -> dict[str, Any]:
        error = reply.get("error")
        if isinstance(error, dict) and {"index", "message", "stack"} <= error.keys():
            index, message, stack = error["index"], error["message"], error["stack"]
            if type(index) is int and index >= 0 and isinstance(message, str) and isinstance(stack, str):
                return error
        raise self._gone(process, text)

    def _parse(self, process: ModuleProcess, text: bytes) -> Any:
        """Return the parsed answer to a question."""
        try:
            return parse_exact(text)
        except ValueError:
            fault = fault_in(text)
            if not text or fault is None:
                raise self._gone(process, text) from None
        process.end()
        return {"error": {"index": 0, "message": f"{fault.at(2)} of the state {fault.reason}", "stack": ""}}

    def _no_document(self, process: ModuleProcess, batch: ReadBatch, index: int, text: bytes) -> FlowError:
        """Return the error of an answer with a value that JavaScript accepts as JSON, but not the runtime."""
        fault = fault_in(text)
        if not text or fault is None:
            return self._gone_in(process, batch, index, text)
        process.end()
        return self._failed(batch, index + fault.row, f"{fault.at(2)} of the published document {fault.reason}", "")

    def _gone_in(self, process: ModuleProcess, batch: ReadBatch, index: int, text: bytes) -> FlowError:
        """Return the error of a process that ended, or answered in another form, in a batch."""
        _, facts, position = self._somewhere(batch, index)
        return self._gone(process, text, facts, position)

    def _gone(
        self, process: ModuleProcess, text: bytes, facts: Sequence[Fact] = (), position: Position | None = None
    ) -> FlowError:
        position = position or self._module.position
        has_closed = not text and process.lives_on()
        status, output = process.end()
        if has_closed or (status == _CLOSED_STATUS and not text):
            return LambdaError(
                f"{self._what} closed the pipes of the runtime, so its process was stopped",
                position=position,
                facts=facts,
            )
        if status in _KILLED and not text:
            return LostError(
                f"the {self.language.runtime} process of '{self._spec.name}' was killed (signal {-status})",
                hint="flowctl retries; if the system ran out of memory, free some",
            )
        what = f"ended with status {status}{': ' if output else ''}{self._authored(output)}"
        if text:
            shown = f": {text[:100]!r}" if self._spec.collection.redaction is None else ""
            what = f"sent an unexpected answer{shown}"
        elif "out of memory" in output:
            what = f"exceeded its heap limit of {self._spec.limits.heap_megabytes} MB"
        return LambdaError(f"{self._what} {what}", position=self._position_in(output) or position, facts=facts)

    def _refused(self, error: dict[str, str], what: str, position: Position) -> LambdaError:
        return LambdaError(
            f"{what}: {self._authored(error['message'])[:2_000]}",
            position=self._position_in(error["stack"] + error["message"]) or position,
            hint=self._hint_of(error["message"]),
        )

    def _failed(self, batch: ReadBatch, index: int, reason: str, stack: str) -> LambdaError:
        name, method, facts = self._at(batch, index)
        message = f"{name} of '{self._spec.name}' failed: {self._authored(reason)[:2_000]}"
        return LambdaError(
            message,
            position=self._position_in(stack) or self._member_position(method),
            hint=self._hint_of(reason),
            rejection=Rejection(index, message),
            facts=facts,
        )

    def _at(self, batch: ReadBatch, index: int) -> tuple[str, str, list[Fact]]:
        """Return the transform and the method that ran for a document of a batch, and the document."""
        which = batch.transforms[index]
        if which == len(self._spec.transforms):
            return "flush()", "flush", []
        transform = self._spec.transforms[which]
        return (
            f"transform '{transform.name}'",
            self._method_of(transform.name),
            [document_fact(_short(batch.documents[index]))],
        )

    def _somewhere(self, batch: ReadBatch, index: int) -> tuple[str, list[Fact], Position]:
        """Return the transforms of the documents of a frame from `index` on; one of these transforms has failed."""
        end = next((end for end in self._ends if end > index), len(batch.documents))
        name, method, facts = self._at(batch, index)
        position = self._member_position(method)
        if any(transform != batch.transforms[index] for transform in batch.transforms[index:end]):
            name, position = f"the {self.language.name} module", self._module.position
        others = end - index - 1
        if facts and others:
            after = f", or {'the one' if others == 1 else f'one of the {others}'} after it"
            facts = [document_fact(fact.value + after) for fact in facts]
        return f"{name} of '{self._spec.name}'", facts, position

    def _wrote(self, what: str, facts: Sequence[Fact], position: Position, foreign: Foreign) -> LambdaError:
        return LambdaError(
            f"{what} wrote to standard output, which is reserved for the runtime, so its process was stopped",
            position=position,
            facts=[Fact("output", "; the output was ", repr(foreign.args[0])), *facts],
            hint=self.language.log_hint,
        )

    def _position_of_hang(self, process: ModuleProcess) -> Position | None:
        """End a process that does not answer, and return the author's position at which it hung, if known."""
        return self._position_in(process.end(explain=True)[1])

    def _late(self, what: str, facts: Sequence[Fact], position: Position, seconds: float) -> LambdaError:
        return LambdaError(
            f"{what} gave no answer within {seconds:g} s, so its process was stopped",
            position=position,
            facts=facts,
            hint=f"to raise the limit: {self.language.timeout_option} SECONDS",
        )


def _are_documents(reply: list[Any]) -> bool:
    return set(map(type, reply)) == {list} and set(map(type, chain.from_iterable(reply))) <= {dict}


def _are_columns(reply: dict[str, Any]) -> bool:
    names, counts = reply.get("columns"), reply.get("counts")
    if not isinstance(names, list) or not isinstance(counts, list) or bool(names) != any(counts):
        return False
    are_names = set(map(type, names)) <= {str} and len(set(names)) == len(names)
    return are_names and set(map(type, counts)) == {int} and min(counts) >= 0


def _short(value: Any) -> str:
    text = dump_exact(value).decode()
    return text if len(text) <= 500 else f"{text[:500]}…"
