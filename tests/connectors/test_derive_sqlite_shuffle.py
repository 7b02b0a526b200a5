"""Computed shuffles: one row of the right types for each document, or an error that names it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlite_derivation import CLOCK, derivation, script

from derive.errors import LambdaError
from derive.lambda_sql.shuffle import ComputedShuffle, check_shuffles
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec, ShuffleSpec


def shuffled(sql: str, *types: str) -> DerivationSpec:
    spec = derivation("SELECT $id;")
    shuffle = ShuffleSpec("lambda", key_types=types, script=script(sql, "shuffle.sql"))
    return replace(spec, transforms=(replace(spec.transforms[0], shuffle=shuffle),))


def keys(spec: DerivationSpec, *documents: dict[str, Any]) -> list[tuple[Any, ...]]:
    clocks = [CLOCK + place for place in range(len(documents))]
    batch = ReadBatch([0] * len(documents), clocks, clocks, documents)
    return ComputedShuffle(spec, spec.transforms[0]).keys(batch)


ANN = {"id": 1, "sender": "ann", "amount": 2.5}
BEN = {"id": 2, "sender": "ben", "amount": 7}


def test_shuffle_components_have_the_declared_types() -> None:
    spec = shuffled("SELECT upper($sender), $id % 2, $amount > 5, NULL", "string", "integer", "boolean", "string")

    assert keys(spec, ANN, BEN) == [("ANN", 1, False, None), ("BEN", 0, True, None)]
    assert keys(spec) == []


def test_shuffle_uses_time_and_randomness_of_the_document() -> None:
    spec = shuffled("SELECT date('now'), random()", "string", "integer")

    assert keys(spec, ANN, BEN) == keys(spec, ANN, BEN)
    assert keys(spec, ANN)[0][0] == "2023-11-14"


@pytest.mark.parametrize(
    ("sql", "types", "documents", "message"),
    [
        ("SELECT $sender WHERE $id = 1", ["string"], [ANN, BEN], r"returned no row; the document was {\"id\":2"),
        ("SELECT $sender WHERE $id = 2", ["string"], [ANN, BEN], r"returned no row; the document was {\"id\":1"),
        (
            "SELECT 'a' UNION ALL SELECT $sender",
            ["string"],
            [ANN, BEN],
            r"more than one row; the document was {\"id\":1",
        ),
        (
            "SELECT $sender UNION ALL SELECT 'a' WHERE $id = 2",
            ["string"],
            [ANN, BEN],
            r"more than one row; the document was {\"id\":2",
        ),
        ("SELECT $amount AS a", ["integer"], [ANN], "returned 2.5 for 'a', but a component of type integer is needed"),
        ("SELECT $id AS a", ["string"], [ANN], "returned 1 for 'a', but a component of type string is needed"),
        ("SELECT $id AS a", ["boolean"], [BEN], "returned 2 for 'a', but a component of type boolean is needed"),
        ("SELECT abs(-9223372036854775808 * $id)", ["integer"], [ANN], "failed: integer overflow"),
    ],
)
def test_document_without_a_shuffle_key_is_named(
    sql: str, types: list[str], documents: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(LambdaError, match=f"the shuffle of transform 'from0' .*{message}") as caught:
        keys(shuffled(sql, *types), *documents)

    assert str(caught.value.position) == "shuffle.sql:1:1"


@pytest.mark.parametrize(
    ("sql", "types", "code", "message"),
    [
        ("SELECT $sendr", ["string"], "E523", "$sendr is not a field of 'acme/in'"),
        ("SELEC 1", ["integer"], "E522", "the shuffle of transform 'from0' is refused by SQLite"),
        ("SELECT 1; SELECT 2", ["integer"], "E527", "must be one statement that returns a row"),
        ("CREATE TABLE a (b)", ["integer"], "E527", "must be one statement that returns a row"),
        (
            "SELECT 1 AS a, 2 AS b",
            ["integer"],
            "E527",
            "returns 2 columns (a, b), but the shuffle key has the types [integer]",
        ),
    ],
)
def test_shuffle_faults_are_reported_by_check(sql: str, types: list[str], code: str, message: str) -> None:
    spec = shuffled(sql, *types)
    (issue,) = check_shuffles(spec)

    assert issue.code == code
    assert message in issue.message
    with pytest.raises(LambdaError, match="from0"):
        ComputedShuffle(spec, spec.transforms[0])
