"""Where a shard goes on, by what its endpoint says, what was kept, and what the data folder knows."""

from __future__ import annotations

from typing import Any

import pytest
from stored_documents import binding, collection

from derive.errors import ProtocolError
from derive.materialize.checkpoint import FROM_NOTHING, ShardCheckpoint, merge_patch, resume
from derive.materialize.restarts import ResetMarker, complete_refills, next_reset
from derive.storage.metadata.descriptions import ShardData, TaskState
from derive.time.positions import Place

BINDINGS = [
    binding(collection("c/one", {"type": "object"}), "b0"),
    binding(collection("c/two", {"type": "object"}), "b1"),
]
KNOWN = {"b0": 50, "b1": 60}


def written(token: str, **positions: int) -> bytes:
    sources = {"b0": "c/one", "b1": "c/two"}
    places = {key: (sources[key], clock) for key, clock in positions.items()}
    return ShardCheckpoint(token, places, {"b0": b"\x15\x07"}).to_bytes()


@pytest.mark.parametrize(
    ("opened", "kept", "token", "positions", "empty", "largest"),
    [
        # Neither has seen anything of the shard: all that is known to be done was nothing for it.
        (b"", b"", None, KNOWN, {"b0", "b1"}, {}),
        # The endpoint was emptied.
        (b"", b"", "a", {"b0": 0, "b1": 0}, {"b0", "b1"}, {}),
        (FROM_NOTHING, b"", "a", {"b0": 0, "b1": 0}, {"b0", "b1"}, {}),
        # Both have seen the same attempt: the data folder may know of more that was nothing.
        (written("a", b0=40, b1=70), b"", "a", {"b0": 50, "b1": 70}, set(), {"b0": b"\x15\x07"}),
        # The endpoint is ahead, or behind, and has the last word.
        (written("b", b0=55, b1=60), b"", "a", {"b0": 55, "b1": 60}, set(), {"b0": b"\x15\x07"}),
        (written("b", b0=10, b1=20), b"", "a", {"b0": 10, "b1": 20}, set(), {"b0": b"\x15\x07"}),
        # A binding that is new to it.
        (written("a", b0=50), b"", "a", {"b0": 50, "b1": 60}, {"b1"}, {"b0": b"\x15\x07"}),
        # It keeps none: what was kept counts, and may be behind what it has stored.
        (b"", written("b", b0=40, b1=40), "b", {"b0": 50, "b1": 60}, set(), {}),
        (b"", written("b", b0=40, b1=40), "c", {"b0": 40, "b1": 40}, set(), {}),
    ],
)
def test_resume_returns_the_position_of_a_shard(
    opened: bytes, kept: bytes, token: str | None, positions: dict[str, int], empty: set[str], largest: dict[str, bytes]
) -> None:
    resumed = resume(opened, ShardData(kept), BINDINGS, KNOWN, token)
    assert (resumed.positions, set(resumed.empty), resumed.largest) == (positions, empty, largest)


def test_a_binding_of_another_source_starts_over() -> None:
    moved = ShardCheckpoint("a", {"b0": ("c/other", 40), "b1": ("c/two", 60)}).to_bytes()
    assert resume(moved, ShardData(), BINDINGS, {"b0": 0, "b1": 60}, "b").positions == {"b0": 0, "b1": 60}


@pytest.mark.parametrize("text", [b"x", b"{}", b"[]", b'{"form":2,"token":"","positions":{},"largest":{}}'])
def test_checkpoint_of_another_program_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="a checkpoint of another program"):
        resume(text, ShardData(), BINDINGS, KNOWN, "a")


@pytest.mark.parametrize(
    ("value", "patch", "merged"),
    [  # of RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": "foo"}, "bar", "bar"),
    ],
)
def test_driver_checkpoint_applies_merge_patches(value: Any, patch: Any, merged: Any) -> None:
    assert merge_patch(value, patch) == merged


@pytest.mark.parametrize(
    ("opened", "token", "clearing", "empty"),
    [
        # The endpoint has a checkpoint of before a split: rows were stored until the reset came.
        (written("a", b0=20), None, {"b0": 70}, {"b1"}),
        (written("a", b0=90, b1=10), None, {"b0": 90, "b1": 10}, set()),
        # It does not know the range, and has rows of it that others have stored.
        (FROM_NOTHING, None, {"b0": 70}, {"b1"}),
        # It has nothing any more.
        (FROM_NOTHING, "a", {}, {"b0", "b1"}),
    ],
)
def test_reset_marker_decides_which_bindings_are_cleared(
    opened: bytes, token: str | None, clearing: dict[str, int], empty: set[str]
) -> None:
    restart = ResetMarker("now", {"b0": ("c/one", 70), "b1": ("c/other", 80)})

    resumed = resume(opened, ShardData(), BINDINGS, {"b0": 0, "b1": 0}, token, restart)
    assert (resumed.clearing, set(resumed.empty)) == (clearing, empty)
    assert resumed.positions == {"b0": 0, "b1": 0}
    assert resumed.is_new is bool(clearing)


def test_reset_marker_records_progress_of_bindings() -> None:
    places = {"b0": Place("c/one", 10), "b1": Place("c/two", 0)}
    first = next_reset(ResetMarker(), TaskState("a/view", 1, {"b0": 50, "b1": 60}, {}, places=places))
    assert first.ends == {"b0": ("c/one", 40), "b1": ("c/two", 60)}
    assert ResetMarker.from_text(first.to_text()) == first
    assert ResetMarker.from_text("") == ResetMarker()
    assert ResetMarker.from_text("a name") == ResetMarker("a name")  # as the first releases wrote it

    places["b1"] = Place("c/three", 0)
    second = next_reset(first, TaskState("a/view", 1, {"b0": 30, "b1": 5}, {}, places=places))
    assert second.ends == {"b0": ("c/one", 40), "b1": ("c/three", 5)}
    assert second.name != first.name
    assert next_reset(ResetMarker(), None).ends == {}


def test_refills_of_a_swap_replace_their_rows_together() -> None:
    places = {key: Place(f"c/{key}", 0) for key in ("b0", "b1.v2", "b2", "b3")}
    state = TaskState("a/view", 1, dict.fromkeys(places, 5), {}, places=places)
    swapped = next_reset(ResetMarker(), state, ["b0", "b1.v2"], is_swap=True)
    restart = next_reset(swapped, state, ["b2", "b3"])
    limits = dict.fromkeys(["b0", "b1.v2", "b2", "b3"], 10)

    assert complete_refills(limits, {"b0": 10, "b1.v2": 9, "b2": 10, "b3": 9}, restart) == ["b2"]
    assert complete_refills(limits, {"b0": 10, "b1.v2": 10}, restart) == ["b0", "b1.v2"]
    raised = dict.fromkeys(["b0.v1", "b1.v3"], 10)  # later, by other values of `backfill`
    assert complete_refills(raised, {"b0.v1": 10, "b1.v3": 9}, restart) == ["b0.v1"]
