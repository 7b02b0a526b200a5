"""On a cycle, too, lambdas that are given fields publish what they would publish if they were given documents."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from conftest import World, write_catalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.errors import FlowError
from derive.protocol.specs import Document
from derive.shard.fields import reading_of

CATALOG = """
collections:
  f/one:
    schema:
      type: object
      required: [id, at]
      properties:
        id: {type: integer}
        at: {type: string}
        text: {type: [string, "null"], default: none}
        number: {type: number}
        rank: {type: [integer, "null"], default: 7}
        inner: {type: object, properties: {x: {type: number}}}
    key: [/id]
  f/loop:
    schema:
      type: object
      required: [id, round]
      properties:
        id: {type: integer}
        round: {type: integer}
        last: {type: string}
        text: {type: [string, "null"], default: none}
        number: {type: number}
        rank: {type: [integer, "null"], default: 7}
        inner: {type: object, properties: {x: {type: number}}}
    key: LOOP_KEY
    projections: {last: {location: /last, partition: true}}
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (rank, n INTEGER, PRIMARY KEY (rank));"]}}
      transforms:
        - name: fromOne
          source: f/one
          shuffle: {key: [/rank]}
          lambda: |
            INSERT INTO seen VALUES ($rank, 1) ON CONFLICT DO UPDATE SET n = n + 1;
            SELECT $id, 0 AS round, 'no' AS last, coalesce($number, 0.5) AS number, $rank, $text WHERE $id % 3 > 0; MORE
        - name: fromLoop
          source: {name: f/loop, partitions: {include: {last: ["no"]}}}
          readDelay: DELAY
          shuffle: {key: [/rank]}
          lambda: |
            INSERT INTO seen VALUES ($rank, 1) ON CONFLICT DO UPDATE SET n = n + 1;
            SELECT $id, $round + 1 AS round, iif($round = 2, 'yes', 'no') AS last, $rank,
              quote($text) || quote($number) || quote($inner$x) || quote($flow_published_at) AS text,
              json_object('x', coalesce($number, (SELECT n FROM seen WHERE rank = $rank), 1)) AS inner; MORE
"""
AS_DOCUMENTS = "/* $flow_document */"

VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | st.sampled_from(["", "a", "null", "é\U0001f600", 'q"\\']),
        "number": st.integers(-5, 5) | st.sampled_from([-0.0, 1.0, 2.5, 2**53 + 1]),
        "rank": st.none() | st.integers(-3, 3) | st.sampled_from([2**62, 1.0]),
        "inner": st.dictionaries(st.just("x"), st.integers(0, 3) | st.just(0.5)),
    },
)


def world_of(folder: Path, name: str, text: str) -> World:
    return World(folder / name, load(write_catalog(folder, text)))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(VALUES, min_size=1, max_size=6),
    st.sampled_from([1, 40]),
    st.sampled_from([0, 1_000, 400_000]),
    st.sampled_from(["0s", "400ms"]),
    st.sampled_from(["[/id, /round]", "[/rank]"]),
    st.sampled_from([1, 1, 3]),
)
def test_lambdas_on_a_cycle_publish_the_same_of_fields_and_of_documents(
    patterns: list[Document], times: int, apart: int, delay: str, key: str, shards: int
) -> None:
    """Ticks of many documents, which are published as columns, among them; of some keys, and of others."""
    schema = CATALOG.replace("DELAY", delay).replace("LOOP_KEY", key)
    half = len(patterns) * times // 2
    documents = [
        {"id": number, "at": format_rfc3339(apart * number + (number > half)), **document}
        for number, document in enumerate(patterns * times, start=1)
    ]
    published = []
    with tempfile.TemporaryDirectory() as folder:
        for name, more, count in (("fields", "", shards), ("documents", AS_DOCUMENTS, 1)):
            world = world_of(Path(folder), name, schema.replace("MORE", more))
            assert (reading_of(world.catalog.derivations["f/loop"]).transforms is None) == (name == "documents")
            for some in (documents[:half], documents[half:]):
                world.ingest("f/one", some)
            world.step(shards=count)
            published.append(world.rows("f/loop"))
            world.store.close()

    assert published[0] == published[1]
    assert published[0] or not any(document["id"] % 3 for document in documents)


FAILING = """
collections:
  f/one:
    schema: &numbers
      type: object
      required: [id, n]
      properties: {id: {type: integer}, n: {type: integer}, at: {type: string}}
    key: [/id]
  f/loop:
    schema: *numbers
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: fromOne, source: f/one, shuffle: {key: [/n]}, lambda: "SELECT $id, $n, 'more' AS more;"}
        - {name: fromLoop, source: f/loop, shuffle: {key: [/n]}, lambda: "SELECT $id, NEXT AS n WHERE $n > 0;"}
"""


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("following", "message"),
    [
        ("abs(iif($n = 2, -9223372036854775807 - 1, $n - 1))", "the document was {shown}"),
        ("iif($n = 2, 'two', $n - 1)", "published for {shown}"),
    ],
)
@pytest.mark.parametrize("count", [1, 80])
def test_an_error_shows_all_of_a_document_that_was_fed_back(
    following: str, message: str, shards: int, count: int, tmp_path: Path
) -> None:
    world = world_of(tmp_path, "failing", FAILING.replace("NEXT", following))
    assert reading_of(world.catalog.derivations["f/loop"]).transforms is not None
    world.ingest(
        "f/one", [{"id": place, "n": 2 + (place < count), "at": format_rfc3339(place)} for place in range(1, count + 1)]
    )

    shown = f'{{"id":{count},"n":2,"more":"more"}}'
    with pytest.raises(FlowError, match=re.escape(message.format(shown=shown))):
        world.step(shards=shards)
