"""SQL that fails leaves nothing, whatever the way in which it fails, and is an error that a person can understand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.errors import LambdaError
from derive.protocol.derive import STATE_TABLES
from derive.protocol.specs import Document, LambdaLimits

CATALOG = """
collections:
  f/source: {key: [/id], schema: {type: object, required: [id], properties: {id: {type: integer}}}}
  f/target:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    derive:
      using:
        sqlite:
          migrations:
            - |
              CREATE TABLE log (id);
              CREATE TABLE tens (ten UNIQUE);
              CREATE TABLE guarded (id);
              CREATE TRIGGER no BEFORE INSERT ON guarded WHEN new.id > 10 BEGIN SELECT RAISE(FAIL, 'no'); END;
      transforms:
        - name: fromSource
          source: f/source
          shuffle: {key: [/id]}
          lambda: |
            INSERT INTO log VALUES ($id);
            SQL
"""
COUNT = "SELECT $id, (SELECT count(*) FROM log) AS n;"
ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE $id > 10) SELECT i FROM n"
MINIMUM = "-9223372036854775808"


def world_of(folder: Path, sql: str, wall: int | None = None) -> World:
    catalog = load(write_catalog(folder, CATALOG.replace("SQL", sql))).within(LambdaLimits(sqlite_seconds=0.05))
    world = World(folder / "data", catalog)
    world.wall = wall or world.wall
    return world


def ingest(world: World, *documents: Document) -> None:
    world.ingest("f/source", documents, clock=None)
    world.wall += 10_000_000


def published(world: World) -> list[Document]:
    return [json.loads(doc) for _, _, _, doc in world.rows("f/target")]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (f"INSERT INTO tens VALUES (min($id, 11)); {COUNT}", "UNIQUE constraint failed: tens.ten"),
        (f"INSERT OR FAIL INTO tens VALUES (-$id), (min($id, 11)); {COUNT}", "UNIQUE constraint failed: tens.ten"),
        (f"INSERT INTO guarded VALUES ($id); {COUNT}", "no"),
        (f"INSERT INTO log SELECT abs(iif($id > 10, {MINIMUM}, 1)) WHERE $id > 10; {COUNT}", "integer overflow"),
        (f"INSERT INTO log SELECT i FROM ({ENDLESS}) WHERE $id > 10; {COUNT}", "it took longer than 0.05 s"),
        (f"INSERT INTO log SELECT max(i) FROM ({ENDLESS}) WHERE $id > 10; {COUNT}", "it took longer than 0.05 s"),
        (f"{COUNT} SELECT i FROM ({ENDLESS}) WHERE i < 0", "it took longer than 0.05 s"),
        (f"{COUNT} SELECT json_extract(iif($id > 10, 'x', '{{}}'), '$.a') AS id WHERE $id > 10", "malformed JSON"),
        ("SELECT $id, iif($id > 10, CAST(x'61ff' AS TEXT), '') AS t", r"it made text that is not valid UTF-8: b'a\xff'"),
        ("SELECT $id, iif($id > 10, zeroblob(1000000001), 1) AS t", "string or blob too big"),
        ("SELECT iif($id > 10, '[', json_object('id', $id)) AS json", "a column whose name begins with 'json' must hold an object, which is the document; the value is '['"),
        (f"INSERT INTO log SELECT 1 WHERE length(randomblob(iif($id > 10, 2000000000, 1))) < 0; {COUNT}",
         "string or blob too big"),
    ],
)  # fmt: skip
def test_failing_lambda_leaves_no_changes(sql: str, reason: str, shards: int, tmp_path: Path) -> None:
    world = world_of(tmp_path, sql)
    ingest(world, *({"id": each} for each in range(1, 11)))
    world.step(shards=shards)
    ingest(world, *({"id": each} for each in range(11, 21)))
    for _ in range(2):
        with pytest.raises(LambdaError) as caught:
            world.step()
        assert f"the lambda of transform 'fromSource' failed: {reason}; the document was" in caught.value.message
        assert caught.value.position is not None

    mended = world_of(tmp_path, "SELECT $id, (SELECT count(*) FROM log WHERE id = $id) AS times;", world.wall)
    mended.step()

    # Each document is in the log once, by the attempt that was committed.
    once = [{"id": each, "times": 1} for each in range(11, 21)]
    assert sorted(filter(once.__contains__, published(mended)), key=lambda each: each["id"]) == once


def test_runtime_tables_of_a_shard_are_all_listed(tmp_path: Path) -> None:
    world = world_of(tmp_path, "SELECT $id, (SELECT json_group_array(name) FROM sqlite_schema) AS names;")
    ingest(world, {"id": 1})
    world.step()
    (document,) = published(world)
    made = {"log", "tens", "guarded", "no", "sqlite_autoindex_tens_1"}
    assert set(document["names"]) - made == STATE_TABLES | {"flow_migrations"}
