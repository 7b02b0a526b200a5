"""Time and random values of the document that a method processes (law L1).

The clock is the document's timestamp. Random values follow from the transform, the timestamp and the document, so that
a method gets the same values when it processes the document again. Functions are replaced where modules look them up;
types of the standard library remain the same types.
"""

from __future__ import annotations

import _frozen_importlib
import builtins
import ctypes
import datetime
import gc
import hashlib
import importlib.abc
import importlib.machinery
import itertools
import os
import random
import sys
import time
import types
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pydantic_core

elapsed = time.perf_counter
"""Returns real seconds since an unspecified time."""

_MOST_SHOWN = 500
"""Maximum number of characters of a document in a message."""


class _Present:
    """The document that is processed now.

    Attributes:
        transforms: names of the transforms, by index.
        index: index of the document in its frame. The loop over a frame only sets this attribute, because a call for
            each document takes longer.
        has_time: false while a method takes a batch.
    """

    __slots__ = (
        "_clocks", "_count", "_documents", "_first", "_has_chance", "_stream", "_stream_serial", "_which", "has_time",
        "index", "transforms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.transforms: Sequence[str] = ()
        self.index = 0
        self._clocks: Sequence[int] = (0,)
        self._which: Sequence[int] = (-1,)
        self._documents: Sequence[Any] = (b"",)
        self._first = 0  # serial number of the first document of the frame
        self._stream = b""
        self._stream_serial = -1  # the document that the stream is for
        self._count = 0
        self._has_chance = True
        self.has_time = True

    @property
    def micros(self) -> int:
        """Return the timestamp in microseconds."""
        return self._clocks[self.index]

    @property
    def serial(self) -> int:
        """Return a number that changes with each document."""
        return self._first + self.index

    @serial.setter
    def serial(self, number: int) -> None:
        self._first = number - self.index

    def _set(self, clocks: Sequence[int], transforms: Sequence[int], documents: Sequence[Any]) -> None:
        self._first += len(self._clocks)
        self.index = 0
        self._clocks, self._which, self._documents = clocks, transforms, documents

    def set_frame(self, clocks: Sequence[int], transforms: Sequence[int], documents: Sequence[Any]) -> None:
        """Make the first document of a frame the present one; the documents have time and random values."""
        self._set(clocks, transforms, documents)
        self._has_chance = self.has_time = True

    def set_other(
        self, micros: int, transform: int, text: builtins.bytes, *, has_chance: bool, has_time: bool = True
    ) -> None:
        """Make a time the present one that is no document's."""
        self._set((micros,), (transform,), (text,))
        self._has_chance, self.has_time = has_chance, has_time

    def place(self) -> str:
        """Return the transform and the document in words, without the document of a batch; empty outside of methods."""
        which = self._which[self.index]
        if not 0 <= which < len(self.transforms):
            return ""
        transform, document = f"transform '{self.transforms[which]}'", self._documents[self.index]
        if document == b"":
            return transform
        text = (document if isinstance(document, bytes) else pydantic_core.to_json(document)).decode()
        return f"{transform}, document {text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + '…'}"

    def bytes(self, count: int) -> bytes:
        """Return the next random bytes of the document."""
        if not self.has_time:
            raise RuntimeError(
                "a method with @arrow has no random values, because the division into batches must not change results"
            )
        if not self._has_chance:
            raise RuntimeError(
                "flush() and start_commit() have no random values, because the number of their calls depends on the"
                " number of shards"
            )
        if self._stream_serial != self.serial:
            document = self._documents[self.index]
            text = document if isinstance(document, bytes) else pydantic_core.to_json(document)
            head = f"{self._which[self.index]} {self.micros} ".encode()
            self._stream, self._count = hashlib.sha256(head + text).digest(), 0
            self._stream_serial = self.serial
        blocks = []
        for _ in range(-(-count // 32)):
            blocks.append(hashlib.sha256(self._stream + self._count.to_bytes(8, "big")).digest())
            self._count += 1
        return b"".join(blocks)[:count]

    def held(self) -> Callable[[], None]:
        """Return a function that makes the present document the present one again."""
        names = [name for name in self.__slots__ if name != "transforms"]
        values = [getattr(self, name) for name in names]

        def restore() -> None:
            for name, value in zip(names, values, strict=True):
                setattr(self, name, value)

        return restore


present = _Present()

_HELD: list[Callable[[], Callable[[], None]]] = [present.held]
"""For the present document and each generator of random values, a function that returns how to restore it."""


def _urandom(size: int, /) -> bytes:
    return present.bytes(size)


class _DocumentRandom(random.Random):
    """Random values that are seeded with each document."""

    _serial = -1

    def _renew(self) -> None:
        if self._serial != present.serial:
            self._serial = present.serial
            super().seed(int.from_bytes(present.bytes(16), "big"))

    def held(self) -> Callable[[], None]:
        """Return a function that restores the state of the generator."""
        serial, state = self._serial, super().getstate()

        def restore() -> None:
            self.setstate(state)
            self._serial = serial

        return restore

    def random(self) -> float:
        """Return the next random number in the interval from 0.0 to 1.0."""
        self._renew()
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        """Return a random integer of `k` bits."""
        self._renew()
        return super().getrandbits(k)

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        """Return a value of the normal distribution, which a call for the previous document has not prepared."""
        self._renew()
        return super().gauss(mu, sigma)

    def getstate(self) -> tuple[Any, ...]:
        """Return the state of the generator for this document."""
        self._renew()
        return super().getstate()

    def setstate(self, state: tuple[Any, ...]) -> None:
        """Set the state of the generator for the rest of the document."""
        self._serial = present.serial
        super().setstate(state)

    def seed(self, a: Any = None, version: int = 2) -> None:
        """Seed the generator for the rest of the document."""
        self._serial = present.serial
        super().seed(a, version)


def _repeatable_seed(original: Callable[..., None]) -> Callable[..., None]:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        original(self, int.from_bytes(present.bytes(16), "big") if a is None else a, version)

    return seed


def _replace_in_type(target: type, name: str, value: object) -> None:
    """Replace a method of a built-in type in place, so that its instances and subclasses stay what they are."""
    names = gc.get_referents(target.__dict__)[0]
    names[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(target))


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _check_time() -> None:
    if not present.has_time:
        raise RuntimeError("a method with @arrow has no current time: take the column 'flow_now' of the batch")


def _now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
    _check_time()
    instant = _EPOCH + datetime.timedelta(microseconds=present.micros)
    moved = instant.replace(tzinfo=None) if tz is None else instant.astimezone(tz)
    if cls is datetime.datetime:
        return moved
    return cls(
        moved.year, moved.month, moved.day, moved.hour, moved.minute, moved.second, moved.microsecond, moved.tzinfo
    )


def _naive_now(cls: type[datetime.datetime]) -> datetime.datetime:
    return _now(cls)


def _today(cls: type[datetime.date]) -> datetime.date:
    _check_time()
    day = _EPOCH + datetime.timedelta(microseconds=present.micros)
    return cls(day.year, day.month, day.day)


def _shown_time(convert: Callable[[float], time.struct_time]) -> Callable[..., time.struct_time]:
    def converted(seconds: float | None = None, /) -> time.struct_time:
        return convert(present.micros / 1_000_000 if seconds is None else seconds)

    return converted


def seconds() -> float:
    """Return the timestamp of the document in seconds."""
    return present.micros / 1_000_000


def nanoseconds() -> int:
    """Return the timestamp of the document in nanoseconds."""
    return present.micros * 1000


def install() -> None:
    """Replace the clocks and the sources of random values; called once, before the author's module is loaded."""
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, seconds)
        setattr(time, f"{name}_ns", nanoseconds)
    time.clock_gettime = lambda clk_id, /: seconds()  # noqa: PLW0108
    time.clock_gettime_ns = lambda clk_id, /: nanoseconds()  # noqa: PLW0108
    time.sleep = lambda seconds, /: None
    os.times = lambda: os.times_result((0.0, 0.0, 0.0, 0.0, seconds()))
    real_strftime, real_asctime = time.strftime, time.asctime
    time.gmtime, time.localtime = _shown_time(time.gmtime), _shown_time(time.localtime)
    time.strftime = lambda format, t=None, /: real_strftime(format, t or time.gmtime())  # noqa: A006
    time.asctime = lambda t=None, /: real_asctime(t or time.gmtime())
    time.ctime = lambda seconds=None, /: real_asctime(time.gmtime(seconds))
    _replace_in_type(datetime.datetime, "now", classmethod(_now))
    _replace_in_type(datetime.datetime, "utcnow", classmethod(_naive_now))
    _replace_in_type(datetime.datetime, "today", classmethod(_naive_now))
    _replace_in_type(datetime.date, "today", classmethod(_today))
    os.urandom = _urandom
    os.getrandom = lambda size, flags=0: _urandom(size)
    random._urandom = _urandom  # type: ignore[attr-defined]
    random.Random.seed = _repeatable_seed(random.Random.seed)  # type: ignore[method-assign]
    generator = _DocumentRandom(0)
    generator._serial = -1
    _HELD.append(generator.held)
    for name in random.__all__:
        method = getattr(generator, name, None)
        if isinstance(method, types.MethodType) or name in {"random", "getrandbits"}:
            setattr(random, name, method)
    random._inst = generator
    uuid._generate_time_safe = None  # type: ignore[attr-defined]
    uuid.getnode = lambda: 0x020000000000
    uuid1 = uuid.uuid1

    def document_uuid1(node: int | None = None, clock_seq: int | None = None) -> uuid.UUID:
        uuid._last_timestamp = None  # type: ignore[attr-defined]
        return uuid1(node, clock_seq)

    uuid.uuid1 = document_uuid1
    sys.meta_path.insert(0, _NumpyFinder())
    _frozen_importlib._find_and_load = _isolated(_frozen_importlib._find_and_load)  # type: ignore[attr-defined]


def _isolated(find_and_load: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that loads a module, with time and random values of its own.

    A module is loaded once in a process, so the values that it takes are none of a document. A module that another
    module imports has values of its own, too.
    """
    imports = itertools.count(2)

    def load(name: str, import_: Any) -> Any:
        restores = [held() for held in _HELD]
        present.set_other(0, -1, name.encode(), has_chance=True)
        present.serial = -next(imports)
        try:
            return find_and_load(name, import_)
        finally:
            for restore in restores:
                restore()

    return load


class _NumpyFinder(importlib.abc.MetaPathFinder):
    """Replaces the functions of `numpy.random` when numpy is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of `numpy.random` with a loader that replaces its functions; else None."""
        if fullname != "numpy.random":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _NumpyLoader(spec.loader)
        return spec


class _NumpyLoader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """Return the module of the real loader."""
        module: types.ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Load `numpy.random`, and seed its functions at their first call for a document."""
        self._loader.exec_module(module)
        state = module.mtrand._rand
        serial = -1

        def held() -> Callable[[], None]:
            at, values = serial, state.get_state()

            def restore() -> None:
                nonlocal serial
                serial = at
                state.set_state(values)

            return restore

        _HELD.append(held)

        def seeded(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal serial
                if serial != present.serial:
                    serial = present.serial
                    state.seed(list(present.bytes(16)))
                return method(*args, **kwargs)

            call.__name__ = method.__name__
            call.__doc__ = method.__doc__
            return call

        for name in dir(module):
            method = getattr(module, name)
            if getattr(method, "__self__", None) is state and name != "seed":
                setattr(module, name, seeded(method))
