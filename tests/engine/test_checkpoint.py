"""Checkpoints: what a task's next transaction builds on."""

from __future__ import annotations

from derive.engine.transactor import Checkpoint, Prepared
from derive.position import Position
from derive.protocol.specs import InputSpec
from derive.time.positions import Place

AT = Position("flow.yaml", 1)
ONE, TWO = InputSpec(0, "one", "c/source", AT), InputSpec(1, "two", "c/source", AT, backfill=2)
PLACES = {"one": Place("c/source", 0), "two.v2": Place("c/source", 0)}


def test_checkpoint_moves_only_participating_inputs_and_shards() -> None:
    before = Checkpoint({"one": 10, "two.v2": 20, "two": 90}, PLACES, shards=2, tokens={0: "a", 1: "b"})

    after = before.after([TWO], end=30, prepared=Prepared(tokens={1: "c"}))

    assert after == Checkpoint({"one": 10, "two.v2": 30, "two": 90}, PLACES, shards=2, tokens={0: "a", 1: "c"})
    assert (after.position(ONE), after.position(TWO)) == (10, 30)
    assert before.tokens == {0: "a", 1: "b"}


def test_new_input_begins_at_the_beginning() -> None:
    assert Checkpoint({"two": 90}, PLACES, shards=1, tokens={}).position(TWO) == 0
