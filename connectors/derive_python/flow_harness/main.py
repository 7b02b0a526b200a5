"""The harness: it runs the author's class for each document of a frame, and answers with the published documents.

A frame opens a session, commits one, or has documents. Documents are answered by one frame or several, in order. The
end of a tick is a document after the last transform: `flush`.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib.util
import inspect
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import repeat
from types import AsyncGeneratorType, GeneratorType
from typing import Any, NoReturn

# Pydantic would import these modules at their first use, in the sandbox, in which Python cannot keep what it compiles.
import pydantic.fields
import pydantic.main
import pydantic.type_adapter
import pydantic.types
from pydantic_core import from_json, to_json

from . import sandbox
from .arrow import ArrowMethod
from .documents import Answer, ColumnAnswer, DocumentAnswer, FrameDocuments, Reader
from .frames import ANSWER, LOG, Frames
from .keyed_state import UNMENTIONED, KeyedState
from .present import elapsed, install, present
from .waiting import EndlessWaitError, Failures, VirtualLoop

_PATIENCE_SECONDS = 0.25
"""Seconds after which the results so far are sent, before the whole frame is processed."""

_MOST_BYTES = 8 << 20
_LONGEST_MESSAGE = 10_000
_DOCUMENTS = b',"documents":'
"""Beginning of the last property of a frame with documents."""

_MOST_CAUSES = 20


_exit = os._exit


def _exit_with_stack(status: int) -> NoReturn:
    """End the process after the author's frames have been written to standard error, for the message of the error."""
    faulthandler.dump_traceback(2, all_threads=False)
    _exit(status)


class Harness:
    """One derivation's module.

    Args:
        frames: the pipes.
        settings: what `connectors.derive_python.runtime.python_process.PythonProcess` passes.
    """

    def __init__(self, frames: Frames, settings: dict[str, Any]) -> None:
        self._frames, self._settings = frames, settings
        self._failures = Failures()
        self._types: Any = None
        self._class: Any = None
        self._derivation: Any = None
        self._methods: list[Callable[[Any], Any]] = []
        self._reads: list[Any] = []
        self._readers: list[Reader] = []
        self._arrow: dict[int, ArrowMethod] = {}
        self._keyed = KeyedState(frames, settings["keys"], is_kept=settings["keeps_state"])
        self._keeps_state = bool(settings["keeps_state"])
        self._updates: list[dict[str, Any]] = []
        self._is_broken = False
        self._differ = False  # documents of the batch differ in their properties, so they are no columns
        self._index: int | None = None
        self._frame: tuple[Sequence[int], Sequence[int], Sequence[Any]] = ((0,), (-1,), (b"",))
        self._renew: Callable[[], object] = int  # begins the time of the event loop again

    async def serve(self) -> None:
        """Answer frames until the input ends."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._failures.note)
        if isinstance(loop, VirtualLoop):
            self._renew = loop.renew
        sys.set_asyncgen_hooks(None, None)  # the loop would list each generator of documents, to close it at the end
        while (text := self._frames.receive()) is not None:
            end = text.find(b"\n")  # JSON has no line break
            arrays = memoryview(text)[end + 1 :] if end >= 0 else b""
            head, _, documents = (text[:end] if arrays else text).partition(_DOCUMENTS)
            frame = from_json(head + b"}" if documents else head)
            self._index = None
            try:
                if arrays:
                    answer = b'{"skipped":true}' if self._is_broken else await self._process_arrays(frame, arrays)
                elif "transforms" in frame:
                    answer = b'{"skipped":true}' if self._is_broken else await self._process(frame, documents[:-1])
                elif "open" in frame:
                    answer = await self._open(frame["open"])
                else:
                    answer = await self._commit()
            except BaseException as error:
                self._is_broken = True
                answer = self.failure(error)
            self._frames.send(ANSWER, answer)

    async def _open(self, question: dict[str, Any]) -> bytes:
        """Begin a session with an instance of its own."""
        self._is_broken = self._differ = False
        self._updates = []
        self._failures.first = None
        present.set_other(0, -1, b"", has_chance=True)
        if self._class is None:
            self._load()
        elif question["forget"] and self._derivation is not None:
            await _awaited(self._derivation.reset())
        self._keyed.begin()
        types = self._types
        state = question["state"]
        opened = types.Request.Open(state=state, config=self._settings["config"])
        arguments = [opened, types.EndpointConfig.model_validate(self._settings["config"])]
        self._derivation = derivation = _called(self._class, arguments)
        self._keyed.serve(derivation)
        self._methods = [getattr(derivation, name) for name in self._settings["methods"]]
        self._reads = [getattr(types.Request, name) for name in self._settings["reads"]]
        if not self._readers:
            self._readers = [Reader(getattr(types, name)) for name in self._settings["sources"]]
        self._arrow = {
            index: ArrowMethod(_awaiting(method), self._settings["columns"][index], self._settings["published"])
            for index, method in enumerate(self._methods)
            if getattr(method, "__flow_arrow__", False)
        }
        base = types.IDerivation
        abilities = {
            "flush": self._class.flush is not base.flush,
            "startCommit": bool(self._settings["keeps_state"]),
            "reset": self._class.reset is not base.reset,
        }
        return to_json({"opened": abilities})

    def _load(self) -> None:
        self._types = _types(self._settings["package"])
        _add_to_path(self._settings["author"])
        module = self._imported(self._settings["module"])
        derived = getattr(module, "Derivation", None)
        if not isinstance(derived, type):
            raise TypeError("the module defines no class 'Derivation'")
        if not issubclass(derived, self._types.IDerivation):
            raise TypeError("'Derivation' does not extend the class 'IDerivation'")
        for name in self._settings["methods"]:
            if not callable(getattr(derived, name, None)) or getattr(
                getattr(derived, name), "__isabstractmethod__", False
            ):
                raise TypeError(f"the class 'Derivation' has no method '{name}'")
        commits = getattr(derived, "start_commit", None)
        if commits is not self._types.IDerivation.start_commit and not self._settings["keeps_state"]:
            raise TypeError(UNMENTIONED.format("start_commit"))
        self._class = derived
        # The loaded modules stay until the process ends, so the collector can skip their objects.
        gc.collect()
        gc.freeze()

    def _imported(self, path: str) -> Any:
        """Return the author's module at a path relative to the import root."""
        names = path.removesuffix(".py").removesuffix("/__init__").split("/")
        if all(name.isidentifier() for name in names) and names[0] not in sys.stdlib_module_names:
            return importlib.import_module(".".join(names))
        spec = importlib.util.spec_from_file_location("derivation", f"{self._settings['author']}/{path}")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["derivation"] = module
        spec.loader.exec_module(module)
        return module

    async def _process(self, frame: dict[str, Any], text: bytes | bytearray) -> bytes:
        """Answer a frame with documents, whose last answer is the result."""
        transforms, clocks = frame["transforms"], frame["clocks"]
        documents = FrameDocuments(text, len(transforms))
        calls = await self._begin(transforms, documents, clocks, frame.get("published", clocks))
        answer: Answer = ColumnAnswer() if frame.get("columns") and not self._differ else DocumentAnswer()
        sent, begun, last = elapsed(), 0, len(transforms) - 1
        keeps_state, enter, failures = self._keeps_state, self._keyed.enter, self._failures
        for place, (method, read) in enumerate(calls):
            self._index = place - begun
            present.index = place
            if keeps_state:
                enter(place)
            result = method(read)
            if type(result) is not list:
                result = await _results(result)
                self._renew()
            if failures.first is not None:
                failures.check()
            if not answer.add(result):
                answer, self._differ = DocumentAnswer([*answer.documents(), result]), True
            if (elapsed() - sent > _PATIENCE_SECONDS or answer.size > _MOST_BYTES) and place < last:
                self._frames.send(ANSWER, answer.text())
                answer, sent, begun = type(answer)(), elapsed(), place + 1
        self._index = last + 1 - begun
        if frame.get("last"):
            await self._end_batch()
        return answer.text()

    async def _begin(
        self, transforms: list[int], documents: FrameDocuments, clocks: list[int], published: list[int]
    ) -> Iterator[tuple[Callable[[Any], Any], Any]]:
        """Return the method, and its argument, of each document of a frame."""
        ready: dict[int, Any] = {}
        models = self._models(transforms, documents)
        self._keyed.prepare(transforms, documents, models, self._readers[transforms[0]].fields if models else {})
        if self._arrow:
            ready = await self._tables(transforms, documents, clocks, published)
        self._renew()
        self._frame = (clocks, transforms, documents)
        present.set_frame(*self._frame)
        if models:
            first = transforms[0]
            return zip(repeat(self._methods[first]), map(self._reads[first], models, published), strict=False)
        return self._calls(transforms, documents, clocks, published, ready)

    def _models(self, transforms: list[int], documents: FrameDocuments) -> list[Any]:
        """Return the models of all documents of a frame, if one method processes all; an empty list otherwise."""
        first = transforms[0]
        if first in self._arrow or first == len(self._methods) or transforms.count(first) < len(transforms):
            return []
        return self._readers[first].decode(documents) or []

    def _calls(
        self,
        transforms: list[int],
        documents: FrameDocuments,
        clocks: list[int],
        published: list[int],
        ready: dict[int, Any],
    ) -> Iterator[tuple[Callable[[Any], Any], Any]]:
        """Yield the function that processes each document of a frame, and its argument, when it is needed."""
        for place, transform in enumerate(transforms):
            if place in ready:
                yield _taken, ready[place]
            elif transform == len(self._methods):
                yield self._flush, clocks[place]
            else:
                try:
                    read = self._reads[transform](self._readers[transform].make(documents[place]), published[place])
                except Exception as error:  # the loop raises the error when it has the place of the document
                    yield _taken, error
                    return
                yield self._methods[transform], read

    async def _end_batch(self) -> None:
        self._differ = False
        await asyncio.sleep(0)  # tasks that have failed report their errors before the batch is answered
        self._failures.check()

    async def _process_arrays(self, frame: dict[str, Any], arrays: memoryview | bytes) -> bytes:
        """Answer a frame with documents of one transform as a stream of Arrow."""
        index = frame["transform"]
        self._index = 0
        method = self._arrow.get(index)
        if method is None:
            name = self._settings["methods"][index]
            raise TypeError(f"the decorator '@arrow' of the method '{name}' is not 'arrow' of the package of types")
        self._keyed.prepare([], [])
        self._keyed.enter(None)
        self._renew()
        present.set_other(0, index, b"", has_chance=False, has_time=False)
        rows, stream = await method.answer(arrays, as_columns=frame["columns"])
        self._failures.check()
        if stream is not None:
            return stream
        answer = DocumentAnswer()
        for row in rows:
            if isinstance(row, Exception):
                raise row
            answer.add(row)
            self._index += 1
        return answer.text()

    async def _tables(
        self, transforms: list[int], documents: FrameDocuments, clocks: list[int], published: list[int]
    ) -> dict[int, Any]:
        """Return the documents, or the error, of each document of a frame that a method with `@arrow` takes."""
        ready: dict[int, Any] = {}
        for index, method in self._arrow.items():
            places = [place for place, transform in enumerate(transforms) if transform == index]
            if places:
                self._keyed.enter(None)
                present.set_other(0, index, b"", has_chance=False, has_time=False)
                own = ([values[place] for place in places] for values in (documents, clocks, published))
                ready.update(zip(places, await method.run(*own), strict=False))
        return ready

    async def _flush(self, clock: int) -> list[Any]:
        """Return the documents of `flush` at the end of a tick."""
        present.set_other(clock, len(self._methods), b"", has_chance=False)
        self._keyed.enter(None)
        flushed = self._types.Response.Flushed()
        result = await _results(_called(self._derivation.flush, [self._updates, flushed]))
        present.set_frame(*self._frame)
        self._renew()
        if flushed.state is not None:
            self._update(flushed.state)
        return result

    async def _commit(self) -> bytes:
        present.set_other(0, -1, b"", has_chance=False)
        self._keyed.enter(None)
        types = self._types
        if self._class.start_commit is not types.IDerivation.start_commit:
            request = types.Request.StartCommit()
            started = await _awaited(_called(self._derivation.start_commit, [request]))
            state = getattr(started, "state", started)
            if state is not None:
                self._update(state)
        updates, self._updates = self._updates, []
        committed = {"updates": updates, "keys": self._keyed.changes()}
        return b'{"committed":' + to_json(committed, by_alias=True) + b"}"

    def _update(self, state: Any) -> None:
        value = state.model_dump(mode="json") if isinstance(state, pydantic.BaseModel) else state
        if not isinstance(value, dict) or "updated" not in value:
            raise TypeError("a state is ConnectorState(updated=…, merge_patch=…)")
        if not self._settings["keeps_state"]:
            raise TypeError(UNMENTIONED.format("flushed.state"))
        self._updates.append({"updated": value["updated"], "mergePatch": bool(value.get("merge_patch"))})

    def failure(self, error: BaseException) -> bytes:
        """Return the answer to a frame that has failed; a group of errors, as of `TaskGroup`, shows its first error."""
        index = 0 if self._index is None or self._index < 0 else self._index
        chain = [error]
        while isinstance(error := chain[-1], BaseExceptionGroup) and len(chain) < _MOST_CAUSES:
            chain.append(error.exceptions[0])
        message, seen = ": ".join(map(_message, chain)), set[int]()
        stack = "\n".join(_stack(part, self._settings, seen) for part in reversed(chain))
        answer = {"index": index, "message": message, "stack": stack}
        return b'{"error":' + to_json(answer) + b"}"


def _message(error: BaseException) -> str:
    """Return the class and the text of an error; half characters, which UTF-8 cannot hold, become question marks."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception as other:
        text = f"its text cannot be shown ({type(other).__name__})"
    return (f"{kind}: {text}" if text else kind).encode("utf-8", "replace").decode()


def _types(package: str) -> Any:
    """Return the package of types; packages around it are forgotten, because the author may have them as well."""
    types = importlib.import_module(package)
    names = package.split(".")
    for count in range(1, len(names)):
        sys.modules.pop(".".join(names[:count]), None)
    return types


def _add_to_path(author: str) -> None:
    """Add the root of the author's imports, before all libraries but the standard library."""
    libraries = (place for place, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages")))
    sys.path.insert(next(libraries, len(sys.path)), author)


def _called(function: Callable[..., Any], arguments: list[Any]) -> Any:
    """Call a function of the author's with as many arguments as it takes."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return function(*arguments)
    return function(*arguments[: len(parameters)])


def _taken(result: Any) -> Any:
    """Return a result that is ready, or raise its error."""
    if isinstance(result, Exception):
        raise result
    return result


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _awaiting(method: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def call(batch: Any) -> Any:
        return await _awaited(method(batch))

    return call


def _held(document: Any) -> Any:
    """Return a copy of a published document, because the author may change the document and publish it again."""
    kind = type(document)
    if kind is dict:
        return document.copy()
    copied = getattr(kind, "__copy__", None)
    return document if copied is None else copied(document)


async def _results(result: Any) -> list[Any]:
    """Return the documents that a method returns or yields, in any of the forms that it may have."""
    if type(result) is GeneratorType:
        return [_held(document) for document in result]
    if type(result) is AsyncGeneratorType or isinstance(result, AsyncIterator):
        return [_held(document) async for document in result]
    if inspect.isawaitable(result):
        result = await result
    if result is None:
        return []
    if type(result) is list:
        return result
    if isinstance(result, dict | pydantic.BaseModel) or hasattr(result, "__struct_fields__"):
        return [result]
    return list(map(_held, result))


def _stack(error: BaseException, settings: dict[str, Any], seen: set[int]) -> str:
    """Return the author's frames of a traceback, the innermost one first, each as `path:line:column`.

    Args:
        error: the error; its causes follow.
        settings: settings of the harness.
        seen: identities of errors that precede it; causes may form a cycle.
    """
    seen.add(id(error))
    lines = []
    folder = settings["author"] + "/"
    if isinstance(error, SyntaxError) and error.filename and error.filename.startswith(folder):
        lines.append(f"{error.filename}:{error.lineno or 1}:{error.offset or 1}")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(folder):
            lines.append(f"{frame.filename}:{frame.lineno}:{(frame.colno or 0) + 1} in {frame.name}")
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    is_new = cause is not None and id(cause) not in seen and len(seen) < _MOST_CAUSES
    return "\n".join(lines) + (f"\n{_stack(cause, settings, seen)}" if cause is not None and is_new else "")


class _Output(io.TextIOBase):
    """Standard output and standard error of the module: each line becomes a message of the task's log."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, harness: Frames, level: str) -> None:
        self._frames, self._level = harness, level
        self._parts: list[str] = []
        self._length = 0

    def write(self, text: str) -> int:
        self._parts.append(text)
        self._length += len(text)
        if "\n" in text or self._length > _LONGEST_MESSAGE:
            *lines, rest = "".join(self._parts).split("\n")
            if len(rest) > _LONGEST_MESSAGE:
                lines, rest = [*lines, rest], ""
            self._parts, self._length = [rest], len(rest)
            for line in lines:
                say(self._frames, self._level, line, present.place())
        return len(text)

    def flush(self) -> None:
        line, self._parts, self._length = "".join(self._parts), [], 0
        if line:
            say(self._frames, self._level, line, present.place())

    def close(self) -> None:
        """Stay open."""

    def writable(self) -> bool:
        return True


def say(frames: Frames, level: str, message: str, place: str = "") -> None:
    """Send a message to the log of the task.

    Args:
        frames: the pipes.
        level: level of the message, such as `info`.
        message: the message.
        place: transform and document of the message; empty without one.
    """
    text = message[:_LONGEST_MESSAGE].encode("utf-8", "replace").decode()
    frames.send(LOG, to_json([level, f"{text}  ({place})" if place else text]))


class _LogHandler(logging.Handler):
    """Sends the records of `logging` to the task's log."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self._frames = frames

    def emit(self, record: logging.LogRecord) -> None:
        levels = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))
        level = next((name for least, name in levels if record.levelno >= least), "debug")
        try:
            say(self._frames, level, self.format(record), present.place())
        except Exception:
            self.handleError(record)


def main() -> None:
    """Run the module that the first argument describes."""
    sys.dont_write_bytecode = True  # a module must not see in its folder whether it has run before
    settings = json.loads(sys.argv.pop())
    faulthandler.enable(all_threads=False)
    os._exit = _exit_with_stack
    frames = Frames()
    present.transforms = settings["transforms"]
    libraries = [path for path in sys.path if path != settings["harness"]]
    sys.path[:] = [*libraries, settings["types"]]
    sys.stdout, sys.stderr = _Output(frames, "info"), _Output(frames, "warn")
    logging.basicConfig(level=logging.DEBUG, handlers=[_LogHandler(frames)], format="%(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    install()
    for lack in sandbox.enter(
        [settings["folder"], settings["harness"], *settings["readable"]], network=settings["network"]
    ):
        say(frames, "warn", f"the sandbox is incomplete: {lack}")
    loop = asyncio.SelectorEventLoop() if settings["network"] else VirtualLoop()
    asyncio.set_event_loop(loop)
    harness = Harness(frames, settings)
    try:
        loop.run_until_complete(harness.serve())
    except EndlessWaitError as error:
        frames.send(ANSWER, harness.failure(error))
        _exit(1)
    _exit(0)
