"""Keys of `self.state` that are taken from models equal keys that are taken from documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from pydantic import BaseModel, Field
from pydantic_core import from_json, to_json

from connectors.derive_python.flow_harness.documents import FrameDocuments, Reader
from connectors.derive_python.flow_harness.frames import Frames
from connectors.derive_python.flow_harness.keyed_state import KeyedState

Scalar = str | int | float | None


class Model(BaseModel):
    id: Scalar = None
    name: Scalar = Field(None, alias="a-b")


class Struct(msgspec.Struct, rename={"name": "a-b"}):
    id: Scalar | msgspec.UnsetType = msgspec.UNSET
    name: Scalar | msgspec.UnsetType = msgspec.UNSET


class Stored:
    """Frames to a shard without values."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, text: bytes) -> bytes:
        keys = from_json(text)
        self.asked += keys
        return to_json([None] * len(keys))


def counts(pointers: list[Any], documents: Sequence[Any], model: Any) -> tuple[list[list[str]], list[str]]:
    """Return the number of documents of each key, and the loaded keys."""
    stored = Stored()
    keyed = KeyedState(cast(Frames, stored), [pointers], is_kept=True)
    for part in ([{"id": 0, "a-b": "x"}], documents, documents):  # the first frame shows that values are used
        read = FrameDocuments(to_json(part), len(part))
        reader = Reader(model or Model)
        keyed.prepare([0] * len(part), read, reader.decode(read) or () if model else (), reader.fields)
        for place in range(len(part)):
            keyed.enter(place)
            values = keyed.values()
            keyed.replace({"n": values.get("n", 0) + 1})
            assert keyed.values() is keyed.values() is not values
    return sorted(keyed.changes()), stored.asked


ID, NAME = (["id"], 0), (["a-b"], "none")
CASES: list[tuple[str, list[Any], list[Any]]] = [
    ("texts", [NAME], [{"a-b": "x"}, {"a-b": 'é"'}, {"a-b": "x"}]),
    ("integers", [ID], [{"id": 1}, {"id": 2**60}, {"id": 1}]),
    ("1.0 is the integer 1", [ID], [{"id": 1}, {"id": 1.0}, {"id": 1.5}]),
    ("other types", [ID], [{"id": 1}, {"id": "1"}, {"id": None}, {"id": True}]),
    ("defaults", [NAME], [{"a-b": "none"}, {"id": 1}]),
    ("several components", [NAME, ID], [{"id": 1, "a-b": "x"}, {"id": 2, "a-b": "x"}, {"id": 1, "a-b": "x"}]),
    ("no property of the model", [(["other"], "d")], [{"id": 1, "other": "o"}, {"id": 2}]),
    ("nested", [(["id", "deep"], 0)], [{"id": 1}, {"id": 2}]),
]


@pytest.mark.parametrize("model", [Model, Struct])
@pytest.mark.parametrize(("pointers", "documents"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_keys_of_models_equal_keys_of_documents(model: Any, pointers: list[Any], documents: list[Any]) -> None:
    expected, asked = counts(pointers, documents, None)
    assert sum(from_json(text)["n"] for _, text in expected) == 1 + 2 * len(documents)
    assert counts(pointers, documents, model) == (expected, asked)
    assert len(set(asked)) == len(asked)
