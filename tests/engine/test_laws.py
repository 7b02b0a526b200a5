"""The laws of the design, over random catalogs and random inputs."""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path

import pytest
from conftest import LATER, World, write_catalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.document.clock import format_rfc3339, parse_rfc3339
from derive.engine import plan
from derive.engine.spark import SparkExecutor
from derive.engine.split import split
from derive.storage.compaction import compact

BASE = 1_700_000_000_000_000
SECOND = 1_000_000

SOURCE = """
collections:
  t/source:
    schema:
      type: object
      required: [id, k, j, v, at]
      properties:
        id: {type: integer}
        k: {type: string}
        j: {type: [string, "null"], default: "?"}
        v: {type: number}
        at: {type: string}
    key: [/id]
"""

REDUCTIONS = {
    "last": "{type: object, required: [k], properties: {k: {type: string}, v: {type: number}}}",
    "sum": (
        "{type: object, required: [k], reduce: {strategy: merge}, properties:"
        " {k: {type: string}, v: {type: number, reduce: {strategy: sum}}}}"
    ),
    "extremes": (
        "{type: object, required: [k], reduce: {strategy: merge}, properties: {k: {type: string},"
        " v: {type: number, reduce: {strategy: maximize}}, first: {reduce: {strategy: firstWriteWins}}}}"
    ),
    "separate": (
        "{type: object, required: [k], reduce: {strategy: lastWriteWins, associative: false},"
        " properties: {k: {type: string}, v: {type: number}}}"
    ),
}


@st.composite
def stateless(draw: st.DrawFn, name: str, source: str) -> str:
    modulus = draw(st.integers(1, 3))
    return f"""
  t/{name}:
    schema: {REDUCTIONS[draw(st.sampled_from(sorted(REDUCTIONS)))]}
    key: [/k]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - name: pick
          source: {source}
          shuffle: any
          lambda: SELECT $k, $v WHERE CAST($v AS INTEGER) % {modulus} = 0;
"""


@st.composite
def keyed(draw: st.DrawFn, name: str, source: str) -> str:
    """Counts per key, and takes back what is older than a delay; publishes under another key, so shards meet."""
    delay = draw(st.sampled_from(["1s", "3s", "1m"]))
    tick = draw(st.sampled_from(["500ms", "1s", "2s"]))
    if source == "t/source" and draw(st.booleans()):
        return keyed_by_pair(name, delay, tick)
    # A shuffle may be coarser than the state: all of a key still comes to one shard.
    shuffle = draw(
        st.sampled_from(["{key: [/k]}", "{lambda: 'SELECT $k AS k;'}", "{lambda: 'SELECT upper(substr($k, 1, 1));'}"])
    )
    delayed = "{key: [/k]}" if shuffle == "{lambda: 'SELECT $k AS k;'}" else shuffle
    return f"""
  t/{name}:
    schema: {REDUCTIONS[draw(st.sampled_from(sorted(REDUCTIONS)))]}
    key: [/k]
    derive:
      using:
        sqlite: {{migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n REAL NOT NULL);"]}}
      shards: {{maxTxnDuration: {tick}}}
      shuffleKeyTypes: [string]
      transforms:
        - name: add
          source: {source}
          shuffle: {shuffle}
          lambda: |
            INSERT INTO seen VALUES ($k, ifnull($v, 0)) ON CONFLICT DO UPDATE SET n = n + ifnull($v, 0);
            SELECT substr($k, 1, 1) AS k, n AS v FROM seen WHERE k = $k;
        - name: take
          source: {source}
          shuffle: {delayed}
          readDelay: {delay}
          lambda: UPDATE seen SET n = n - ifnull($v, 0) WHERE k = $k RETURNING 'taken' AS k, n AS v;
"""


def keyed_by_pair(name: str, delay: str, tick: str) -> str:
    return f"""
  t/{name}:
    schema: {REDUCTIONS["sum"]}
    key: [/k]
    derive:
      using:
        sqlite: {{migrations: ["CREATE TABLE pairs (k TEXT, j TEXT, PRIMARY KEY (k, j));"]}}
      shards: {{maxTxnDuration: {tick}}}
      transforms:
        - name: first
          source: t/source
          shuffle: {{key: [/k, /j]}}
          lambda: INSERT INTO pairs VALUES ($k, ifnull($j, 'null')) ON CONFLICT DO NOTHING RETURNING $k, $v;
        - name: forget
          source: t/source
          shuffle: {{key: [/k, /j]}}
          readDelay: {delay}
          lambda: DELETE FROM pairs WHERE k = $k AND j = ifnull($j, 'null');
"""


@st.composite
def feedback(draw: st.DrawFn, name: str, source: str) -> str:
    """Passes each document on from key to key, a tick at a time, until it has been halved away."""
    delay = draw(st.sampled_from(["", "readDelay: 2s"]))
    return f"""
  t/{name}:
    schema:
      type: object
      required: [k, v, alive]
      reduce: {{strategy: merge}}
      properties:
        {{k: {{type: string}}, v: {{type: number, reduce: {{strategy: sum}}}}, alive: {{type: boolean}}}}
    key: [/k, /alive]
    projections: {{alive: {{location: /alive, partition: true}}}}
    derive:
      using:
        sqlite: {{migrations: ["CREATE TABLE visits (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: begin
          source: {source}
          shuffle: {{key: [/k]}}
          lambda: |
            INSERT INTO visits VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1;
            SELECT json_object('k', $k || 'x', 'v', $v, 'alive', json(iif($v > 4, 'true', 'false'))) AS json;
        - name: again
          source: {{name: t/{name}, partitions: {{include: {{alive: [true]}}}}}}
          shuffle: {{key: [/k]}}
          {delay}
          lambda: |
            INSERT INTO visits VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1;
            SELECT json_object('k', substr($k || n, 1, 3), 'v', $v / 2, 'alive', json(iif($v > 9, 'true', 'false')))
              AS json FROM visits WHERE k = $k;
"""


@st.composite
def catalogs(draw: st.DrawFn) -> str:
    text = SOURCE
    source = "t/source"
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from([stateless, keyed, feedback]))
        name = f"d{number}"
        text += draw(kind(name, source))
        source = draw(st.sampled_from(["t/source", f"t/{name}"]))
    return text


@st.composite
def inputs(draw: st.DrawFn) -> list[dict[str, object]]:
    clock = BASE
    documents = []
    for number in range(draw(st.integers(1, 25))):
        clock += draw(st.sampled_from([0, 1, 1000, 400_000, SECOND, 5 * SECOND]))
        documents.append(
            {
                "id": number,
                "k": draw(st.sampled_from(["a", "b", "ab", "ba", "ü", 'q"\\'])),
                "j": draw(st.sampled_from(["x", "y", None])),
                "v": draw(st.sampled_from([1, 2, 0.1, 7.75, 40])),
                "at": format_rfc3339(clock),
            }
        )
    return documents


def world_of(folder: str, name: str, text: str) -> World:
    path = Path(folder)
    return World(path / name, load(write_catalog(path, text)))


SLOW = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@SLOW
@given(catalogs(), inputs(), st.data())
def test_l1_any_number_of_shards_and_any_batching_give_the_same_bytes(
    text: str, documents: list[dict[str, object]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = world_of(folder, "one", text)
        whole.ingest("t/source", documents)
        whole.step(shards=1)

        three = world_of(folder, "three", text)
        three.ingest("t/source", documents)
        three.step(shards=3)
        assert three.digest() == whole.digest()

        # Live: documents arrive piece by piece, time passes between them, shards are split and segments merged.
        live = world_of(folder, "live", text)
        begin = 0
        while begin < len(documents):
            end = data.draw(st.integers(begin + 1, len(documents)))
            while end < len(documents) and documents[end]["at"] == documents[end - 1]["at"]:
                end += 1
            live.ingest("t/source", documents[begin:end])
            following = parse_rfc3339(documents[end]["at"]) if end < len(documents) else LATER
            live.wall = min(
                following, live.store.collection("t/source").upper + data.draw(st.sampled_from([0, SECOND]))
            )
            live.step(shards=2)
            begin = end
            for name in data.draw(st.sets(st.sampled_from(sorted(live.catalog.derivations)), max_size=1)):
                if live.store.task(name).shards < 16:
                    split(live.store, name)
            for name in data.draw(st.sets(st.sampled_from(sorted(live.catalog.collections)), max_size=1)):
                compact(live.store, live.catalog.collections[name], grace=0)
        live.wall = LATER
        live.step(shards=2)
        assert live.digest() == whole.digest()
        for each in (whole, three, live):
            each.store.close()


@pytest.mark.spark
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=catalogs(), documents=inputs())
def test_l1_spark_gives_the_bytes_of_the_in_process_executor(
    spark: SparkExecutor, text: str, documents: list[dict[str, object]]
) -> None:
    _spark_agrees(spark, text, documents, [1, 2])


@pytest.mark.spark
def test_l1_spark_with_five_shards_and_feedback(spark: SparkExecutor) -> None:
    text = SOURCE + keyed_by_pair("pairs", "2s", "1s") + FEEDBACK
    documents = [
        {"id": n, "k": "abü"[n % 3], "j": ["x", None][n % 2], "v": n % 17, "at": format_rfc3339(BASE + n * 300_000)}
        for n in range(12)
    ]
    _spark_agrees(spark, text, documents, [5])


FEEDBACK = """
  t/loop:
    schema: {type: object, required: [k, v], properties: {k: {type: string}, v: {type: number}}}
    key: [/k]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: begin, source: t/source, shuffle: {key: [/k]}, lambda: "SELECT $k, $v;"}
        - name: again
          source: t/loop
          shuffle: {key: [/k]}
          lambda: SELECT $k || 'x' AS k, $v - 8 AS v WHERE $v > 8;
"""


def _spark_agrees(spark: SparkExecutor, text: str, documents: list[dict[str, object]], counts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        oracle = world_of(folder, "oracle", text)
        oracle.ingest("t/source", documents)
        oracle.step(shards=1)
        # Once through the shuffles, however little it is; and once as it comes, in one task while it is little.
        for shards, small in product(counts, [-1, plan.SMALL_DOCUMENTS]):
            world = world_of(folder, f"spark-{shards}-{small}", text)
            world.ingest("t/source", documents)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(plan, "SMALL_DOCUMENTS", small)
                world.step(spark, shards=shards)
            assert world.digest() == oracle.digest()
            world.store.close()
        oracle.store.close()
