"""`self.state`: values of the shuffle key of the document that is processed, kept by the shard.

The values of a key are loaded when a frame has the first document with this key, and changed values are returned at
the commit. A document cannot see the values of another key, so that the number of shards does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from operator import attrgetter
from typing import Any

from pydantic_core import from_json, to_json

from .frames import Frames

_MISSING = object()

_PLACE: ContextVar[object] = ContextVar("place")
"""The place of the document whose method started a task; threads have none."""

_enter, _entered = _PLACE.set, _PLACE.get

UNMENTIONED = (
    "the module uses {}, and none of its files mentions the word 'state', so no state is stored: mention it in a"
    " comment of the module"
)


class _Entry:
    """The values of one key.

    Attributes:
        values: the values, which the author may change.
        loaded: the values as they were loaded, as a JSON text.
    """

    __slots__ = ("loaded", "values")

    def __init__(self, values: dict[str, Any], loaded: bytes) -> None:
        self.values, self.loaded = values, loaded


class KeyedState:
    """Values by shuffle key.

    The components of keys are attributes of models if all documents of a frame have one transform, and then the
    documents are not parsed for their keys.

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
        self._entries: dict[bytes, _Entry] = {}
        self._known: dict[Any, dict[Any, _Entry]] = {}  # by transform and types of components, entries by components
        self._frame: tuple[Sequence[int], Sequence[Any]] = ([], [])
        self._listed: list[_Entry | None] | None = None  # the entry of each document of the frame, once it is loaded
        self._is_used = False
        self._token = 0
        self.place: int | None = None

    def begin(self) -> None:
        """Forget all values, for a new session."""
        self._forget()
        self.prepare([], [])
        self.enter(None)

    def _forget(self) -> None:
        self._entries, self._known = {}, {}

    def serve(self, derivation: Any) -> None:
        """Give an instance of the author's class access to the values, unless the instance has a `state` of its own."""
        if "state" not in derivation.__dict__:
            derivation._flow_keyed = self

    def prepare(
        self, transforms: Sequence[int], documents: Sequence[Any], models: Sequence[Any] = (), fields: Any = None
    ) -> None:
        """Take the documents of a frame; if the module uses values, load those of all keys in one question.

        Args:
            transforms: the transform of each document.
            documents: the documents, as JSON values.
            models: models of all documents, if all have one transform; empty otherwise.
            fields: names of the models' attributes by property.
        """
        self._frame, self._listed = (transforms, documents), None
        if self._is_used and (not models or not self._take_attributes(transforms[0], models, fields)):
            self._take_keys()

    def enter(self, place: int | None) -> None:
        """Make a document of the frame the present one; tasks of earlier documents have no more values."""
        self.place = place
        self._token = token = self._token + 1
        _enter(token)

    def _take_attributes(self, transform: int, models: Sequence[Any], fields: dict[str, str]) -> bool:
        """Take the keys from models whose components are all texts, or all integers; return whether this is possible.

        Other components, such as 1.0, are equal to values that are spelled differently.
        """
        pointers = self._pointers[transform]
        names = [fields.get(tokens[0]) if len(tokens) == 1 else None for tokens, _ in pointers or ()]
        if not names or None in names:
            return False
        columns = [list(map(attrgetter(str(name)), models)) for name in names]
        kinds = [set(map(type, column)) for column in columns]
        if any(kind not in ({str}, {int}) for kind in kinds):
            return False
        known = self._known.setdefault((transform, *(kind.pop() for kind in kinds)), {})
        keys: list[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        texts = [to_json([key] if len(columns) == 1 else list(key)) for key in missing]
        self._load([text for text in texts if text not in self._entries])
        known.update(zip(missing, map(self._entries.__getitem__, texts), strict=True))
        self._listed = list(map(known.__getitem__, keys))
        return True

    def _take_keys(self) -> list[_Entry | None]:
        if self._listed is None:
            keys = [
                _key_of(pointers, document)
                if transform < len(self._pointers) and (pointers := self._pointers[transform]) is not None
                else None
                for transform, document in zip(*self._frame, strict=True)
            ]
            self._load([key for key in dict.fromkeys(keys) if key is not None and key not in self._entries])
            self._listed = [None if key is None else self._entries[key] for key in keys]
        return self._listed

    def values(self) -> dict[str, Any]:
        """Return the values of the present document's key, which the author may change.

        Raises:
            RuntimeError: no document is processed, or its transform has no key.
        """
        listed, place, token = self._listed, self.place, self._token
        if listed is not None and place is not None and _entered(token) == token:
            entry = listed[place]
            if entry is not None:
                return entry.values
        return self._present().values

    def _present(self) -> _Entry:
        self._is_used = True
        if not self._is_kept:
            raise RuntimeError(UNMENTIONED.format("self.state"))
        if _PLACE.get(self._token) != self._token:
            raise RuntimeError("self.state was used by a task that outlives the method of its document")
        entry = None if self.place is None else self._take_keys()[self.place]
        if entry is None:
            raise RuntimeError(
                "self.state has the values of a document's shuffle key: it needs a method without @arrow, of a"
                " transform that shuffles by locations ('shuffle: {key: [...]}')"
            )
        return entry

    def replace(self, values: dict[str, Any]) -> None:
        """Replace all values of the present document's key."""
        if not isinstance(values, dict):
            raise TypeError("self.state is a dict of names and values")
        self._present().values = values

    def changes(self) -> list[list[str]]:
        """Return each changed key with its values, both as JSON texts.

        Raises:
            TypeError: a value would be another one after the transaction.
        """
        changes = []
        for key, entry in self._entries.items():
            text = to_json(entry.values)
            if text != entry.loaded:
                if from_json(text) != entry.values:
                    _refuse(key, entry.values)
                entry.loaded = text
                changes.append([key.decode(), text.decode()])
        self._forget()
        return changes

    def _load(self, keys: list[bytes]) -> None:
        if not keys:
            return
        answers = from_json(self._frames.ask(to_json([key.decode() for key in keys])))
        for key, text in zip(keys, answers, strict=True):
            values = from_json(text or "{}")
            self._entries[key] = _Entry(values, to_json(values))


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
