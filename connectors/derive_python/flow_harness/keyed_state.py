"""`self.state`: values of the shuffle key of the document that is processed, kept by the shard.

The values of a key are loaded when a frame has the first document with this key, and changed values are returned at
the commit. A document cannot see the values of another key, so that the number of shards does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from pydantic_core import from_json, to_json

from .frames import Frames

_MISSING = object()

_PLACE: ContextVar[object] = ContextVar("place")
"""The place of the document whose method started a task; threads have none."""

UNMENTIONED = (
    "the module uses {}, and none of its files mentions the word 'state', so no state is stored: mention it in a"
    " comment of the module"
)


class KeyedState:
    """Values by shuffle key.

    Args:
        frames: the pipes, to load values.
        pointers: for each transform, the locations of its shuffle key, as lists of tokens, each with the value of a
            document without it; None if the transform has no key in its documents.
        is_kept: whether the runtime stores values.

    Attributes:
        place: place of the present document in the frame; None without a document.
    """

    def __init__(self, frames: Frames, pointers: list[list[tuple[list[str], Any]] | None], *, is_kept: bool) -> None:
        self._frames, self._pointers, self._is_kept = frames, pointers, is_kept
        self._values: dict[bytes, dict[str, Any]] = {}
        self._loaded: dict[bytes, bytes] = {}
        self._frame: tuple[Sequence[int], Sequence[Any]] = ([], [])
        self._keys: list[bytes | None] | None = None
        self._is_used = False
        self._token = object()
        self.place: int | None = None

    def begin(self) -> None:
        """Forget all values, for a new session."""
        self._values, self._loaded = {}, {}
        self.prepare([], [])
        self.enter(None)

    def serve(self, derivation: Any) -> None:
        """Give an instance of the author's class access to the values."""
        derivation._flow_keyed = self

    def prepare(self, transforms: Sequence[int], documents: Sequence[Any]) -> None:
        """Take the documents of a frame; if the module uses values, load those of all keys in one question."""
        self._frame, self._keys = (transforms, documents), None
        if self._is_used:
            self._take_keys()

    def enter(self, place: int | None) -> None:
        """Make a document of the frame the present one; tasks of earlier documents have no more values."""
        self.place, self._token = place, object()
        _PLACE.set(self._token)

    def _take_keys(self) -> list[bytes | None]:
        if self._keys is None:
            self._keys = [
                _key_of(pointers, document)
                if transform < len(self._pointers) and (pointers := self._pointers[transform]) is not None
                else None
                for transform, document in zip(*self._frame, strict=True)
            ]
            self._load([key for key in dict.fromkeys(self._keys) if key is not None and key not in self._values])
        return self._keys

    @property
    def _key(self) -> bytes | None:
        """Return the key of the present document; None without one."""
        return None if self.place is None else self._take_keys()[self.place]

    def values(self) -> dict[str, Any]:
        """Return the values of the present document's key, which the author may change.

        Raises:
            RuntimeError: no document is processed, or its transform has no key.
        """
        self._is_used = True
        if not self._is_kept:
            raise RuntimeError(UNMENTIONED.format("self.state"))
        if _PLACE.get(self._token) is not self._token:
            raise RuntimeError("self.state was used by a task that outlives the method of its document")
        key = self._key
        if key is None:
            raise RuntimeError(
                "self.state has the values of a document's shuffle key: it needs a method without @arrow, of a"
                " transform that shuffles by locations ('shuffle: {key: [...]}')"
            )
        return self._values[key]

    def replace(self, values: dict[str, Any]) -> None:
        """Replace all values of the present document's key."""
        if not isinstance(values, dict):
            raise TypeError("self.state is a dict of names and values")
        self.values()
        key = self._key
        assert key is not None
        self._values[key] = values

    def changes(self) -> list[list[str]]:
        """Return each changed key with its values, both as JSON texts.

        Raises:
            TypeError: a value would be another one after the transaction.
        """
        changes = []
        for key, values in self._values.items():
            text = to_json(values)
            if text != self._loaded[key]:
                if from_json(text) != values:
                    _refuse(key, values)
                self._loaded[key] = text
                changes.append([key.decode(), text.decode()])
        self._values, self._loaded = {}, {}
        return changes

    def _load(self, keys: list[bytes]) -> None:
        if not keys:
            return
        answers = from_json(self._frames.ask(to_json([key.decode() for key in keys])))
        for key, text in zip(keys, answers, strict=True):
            values = from_json(text or "{}")
            self._values[key] = values
            self._loaded[key] = to_json(values)


def _refuse(key: bytes, values: dict[str, Any]) -> None:
    """Raise an error that names a value which JSON cannot hold."""
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"self.state of key {key.decode()} has the name {name!r}, which is no text")
        if from_json(to_json(value)) != value:
            raise TypeError(
                f"self.state[{name!r}] of key {key.decode()} has a value that JSON cannot hold, such as a set, a tuple,"
                f" a date or NaN: {value!r:.200}"
            )


def _key_of(pointers: list[tuple[list[str], Any]], document: Any) -> bytes:
    values = [_value_at(document, tokens, default) for tokens, default in pointers]
    return to_json([int(value) if isinstance(value, float) else value for value in values])  # 1.0 is the integer 1


def _value_at(value: Any, tokens: list[str], default: Any) -> Any:
    for token in tokens:
        if isinstance(value, dict):
            value = value.get(token, _MISSING)
        elif isinstance(value, list):
            value = value[int(token)] if token.isdigit() and int(token) < len(value) else _MISSING
        else:
            return default
        if value is _MISSING:
            return default
    return value
