"""Tasks of a run: one that fails stops alone, what heals is tried again, and a task can start over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import World, write_catalog
from failing_executor import FailsFirst

from derive.backoff import Retries
from derive.catalog import load
from derive.engine.inputs import settle
from derive.engine.reset import FORGETTING, reset, split, split_up_to
from derive.engine.run import RETRY_BACKOFF, Run
from derive.engine.task_reconciler import open_run
from derive.errors import StorageError, TaskError, UsageError
from derive.shard.state import task_folder

CATALOG = """
collections:
  r/numbers:
    schema: {type: object, required: [id, n], properties: {id: {type: integer}, n: {type: integer}}}
    key: [/id]
  r/whole:
    schema: &schema
      type: object
      required: [n]
      reduce: {strategy: merge}
      properties: {n: {type: integer}, times: {type: integer, reduce: {strategy: sum}}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE t (n INTEGER PRIMARY KEY, times INTEGER);"]}}
      transforms:
        - name: count
          source: r/numbers
          shuffle: {key: [/n]}
          lambda: &count |
            INSERT INTO t VALUES ($n, 1) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING n, times;
  r/tens:
    schema: *schema
    key: [/n]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: tens, source: r/whole, shuffle: any, lambda: "SELECT $n / 10 AS n, 1 AS times WHERE $n / DIVISOR IS NOT NULL;"}
"""
OTHER = """
collections:
  r/whole:
    schema: {type: object, required: [n], properties: {n: {type: integer}, times: {type: integer}}}
    key: [/n]
  o/sums:
    schema:
      type: object
      required: [of]
      reduce: {strategy: merge}
      properties: {of: {type: string}, times: {type: integer, reduce: {strategy: sum}}}
    key: [/of]
    derive:
      using: {sqlite: {}}
      transforms: [{name: sum, source: r/whole, shuffle: any, lambda: "SELECT 'whole' AS of, 1 AS times;"}]
"""


def world_of(folder: Path, text: str = CATALOG) -> World:
    return World(folder / "data", load(write_catalog(folder, text.replace("DIVISOR", "10"))))


def numbers(world: World, *values: int) -> None:
    world.ingest("r/numbers", [{"id": place, "n": n} for place, n in enumerate(values)], clock=None)
    world.wall += 10_000_000


def test_retryable_failures_are_retried_with_backoff(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    numbers(world, 1, 12)
    now = 0.0
    executor = FailsFirst(times=3)
    tasks = open_run(world.catalog, world.store, executor).tasks
    run = Run(world.catalog, world.store, tasks, retries=Retries(RETRY_BACKOFF, lambda: now))
    failures = []
    for now in (0.0, 0.9, 1.0, 2.9, 3.0, 6.9, 7.0):
        run.step()
        failures.append((now, 3 - executor.times))

    # After 1, 2 and 4 seconds; what was not due changed nothing.
    assert failures == [(0.0, 1), (0.9, 1), (1.0, 2), (2.9, 2), (3.0, 3), (6.9, 3), (7.0, 3)]
    assert [task.error for task in run.tasks.values()] == [None, None]
    assert len(world.rows("r/whole")) == 2
    assert world.task("r/whole").error is None


def test_failing_task_stops_alone_until_it_is_corrected(tmp_path: Path) -> None:
    broken = CATALOG.replace("WHERE $n / DIVISOR IS NOT NULL", "WHERE abs($n - 12 - 9223372036854775807 - 1) > 0")
    world = world_of(tmp_path, broken)
    numbers(world, 1, 12)
    run = world.run()
    run.step()
    run.close()

    assert [task.error is None for task in run.tasks.values()] == [True, False]
    assert len(world.rows("r/whole")) == 2
    assert world.rows("r/tens") == []

    mended = world_of(tmp_path)
    mended.wall = world.wall
    mended.step()
    (tmp_path / "other").mkdir()
    undisturbed = world_of(tmp_path / "other")
    numbers(undisturbed, 1, 12)
    undisturbed.step()

    assert [row[3] for row in mended.rows("r/tens")] == [row[3] for row in undisturbed.rows("r/tens")]


def test_source_read_by_another_catalog_is_not_reset(tmp_path: Path) -> None:
    """It would read again what is derived anew, as soon as its own run has sealed the empty collection."""
    world = world_of(tmp_path)
    here = world.catalog
    (tmp_path / "other").mkdir()
    other = load(write_catalog(tmp_path / "other", OTHER))
    numbers(world, 1, 12)
    world.step()
    world.catalog = other
    world.wall += 5_000_000
    world.step()
    before = [row[3] for row in world.rows("o/sums")]

    with pytest.raises(UsageError, match=r"o/sums, which this catalog does not define, reads r/whole, r/tens,") as info:
        reset(here, world.store, ["r/whole"], cascade=True)
    assert str(info.value.hint).endswith(f": {FORGETTING}")

    assert reset(other, world.store, ["o/sums"]) == ["o/sums"]
    assert reset(here, world.store, ["r/whole"], cascade=True) == ["r/whole", "r/tens"]
    for catalog in (other, here, other):
        world.catalog = catalog
        world.wall += 5_000_000
        world.step()
    assert [row[3] for row in world.rows("o/sums")] == before

    assert settle(here, world.store) == ["o/sums"]  # as FORGETTING does
    assert reset(here, world.store, ["r/whole"], cascade=True) == ["r/whole", "r/tens"]


def test_a_reset_task_derives_the_same_bytes_again(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    numbers(world, 1, 12, 1)
    world.step()
    before = world.digest()
    assert before["r/whole"] != before["r/tens"]

    with pytest.raises(UsageError, match=r"r/tens reads r/whole, .*\(add --cascade to reset these too\)"):
        reset(world.catalog, world.store, ["r/whole"])
    with pytest.raises(UsageError, match="no derivation 'r/numbers'"):
        reset(world.catalog, world.store, ["r/numbers"])
    assert world.digest() == before

    removed: list[tuple[str, int, int]] = []
    done = reset(world.catalog, world.store, ["r/whole"], cascade=True, progress=lambda *step: removed.append(step))
    assert done == ["r/whole", "r/tens"]
    files = [step for step in removed if step[2]]
    assert [(task, count == total) for task, count, total in files] == [
        *(("r/whole", False), ("r/whole", True)),
        *(("r/tens", False), ("r/tens", True)),
    ]
    assert world.rows("r/whole") == world.rows("r/tens") == []
    assert not task_folder(world.root, "r/whole").exists()
    assert list((world.root / "collections" / "r" / "whole@").rglob("*.parquet")) == []

    world.step()
    assert world.digest() == before
    assert reset(world.catalog, world.store, ["r/tens"]) == ["r/tens"]
    world.step()
    assert world.digest() == before


def test_the_key_and_partitions_of_a_derivation_can_change_once_it_is_reset(tmp_path: Path) -> None:
    schema = "{type: object, required: [n, times], properties: {n: {type: integer}, times: {type: integer}}}"
    before = CATALOG.replace("schema: *schema", f"schema: {schema}")
    world = world_of(tmp_path, before)
    numbers(world, 1, 12, 1)
    world.step()
    expected = [row[3] for row in world.rows("r/tens")]
    keyed = before.replace(f"schema: {schema}\n    key: [/n]", f"schema: {schema}\n    key: [/n, /times]")
    changed = keyed + "    projections: {n: {location: /n, partition: true}}\n"
    after = world_of(tmp_path, changed)
    after.wall = world.wall

    with pytest.raises(
        StorageError, match="'r/tens' was stored with logical partitions none, and the catalog now says n"
    ):
        after.rows("r/tens")
    with pytest.raises(StorageError) as caught:
        after.step()
    assert caught.value.hint == (
        "use another name; to replace the documents at one time: flowctl run --shadow; to start over:"
        " flowctl reset --task r/tens"
    )
    reset(after.catalog, after.store, ["r/tens"])
    after.step()

    assert [row[3] for row in after.rows("r/tens")] == expected
    assert {Path(path).parent.name for path in after.store.garbage.known("r/tens")} == {"n=0", "n=1"}


def test_reset_fences_a_running_run(tmp_path: Path) -> None:
    from derive.errors import FencedError

    world = world_of(tmp_path)
    numbers(world, 1)
    run = world.run()
    reset(world.catalog, world.store, ["r/whole", "r/tens"])

    with pytest.raises(FencedError, match="another flowctl runs 'whole' now, or has reset it"):
        run.step()


def test_split_task_continues_with_twice_the_shards(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    documents = [{"id": place, "n": place % 7} for place in range(40)]
    world.ingest("r/numbers", documents, clock=None)
    world.wall += 10_000_000
    world.step(shards=2)
    before = sorted(each.name for each in task_folder(world.root, "r/whole").iterdir())

    assert split(world.store, "r/whole") == 4
    assert before == ["00000000-7fffffff", "80000000-ffffffff", "epochs"]
    after = sorted(each.name for each in task_folder(world.root, "r/whole").iterdir())
    assert after == ["00000000-3fffffff", "40000000-7fffffff", "80000000-bfffffff", "c0000000-ffffffff", "epochs"]

    world.ingest("r/numbers", [{"id": 100 + each["id"], "n": each["n"]} for each in documents], clock=None)
    world.wall += 10_000_000
    world.step()
    state = world.task("r/whole")
    assert (state.shards, sorted(state.tokens)) == (4, [0, 1, 2, 3])
    counts = {row[3] for row in world.rows("r/whole")[-7:]}
    # 40 documents are 5 or 6 of each number; those of the second half count on from there.
    assert counts == {
        f'{{"n":{n},"times":{sum(range(first + 1, 2 * first + 1))}}}' for n, first in enumerate([6] * 5 + [5] * 2)
    }


def test_only_a_task_that_has_run_can_be_split(tmp_path: Path) -> None:
    world = world_of(tmp_path)

    with pytest.raises(TaskError, match=r"'r/whole' has never run \(choose the number of shards at the first run"):
        split(world.store, "r/whole")
    with pytest.raises(TaskError, match="'r/whole' has never run"):
        split_up_to(world.store, "r/whole", 4)


def test_split_to_a_number_of_shards_can_be_repeated(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    numbers(world, 1, 12)
    world.step(shards=2)
    epochs = []
    for shards in (2, 8, 8, 8):
        assert split_up_to(world.store, "r/whole", shards) == shards
        capability, _ = world.store.acquire_task("r/whole", 2)
        epochs.append(capability.epoch)
    assert epochs == [2, 5, 6, 7]  # two splits, and who has asked here

    for shards in (1, 4, 12):
        with pytest.raises(TaskError, match=f"'r/whole' has 8 shards, and doubling never results in {shards} "):
            split_up_to(world.store, "r/whole", shards)


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        (lambda text: text, []),
        (lambda text: text.replace("name: count", "name: counted"), ["counted"]),
        (lambda text: text.replace("name: count", "name: count\n          backfill: 2"), ["count"]),
    ],
)
def test_renamed_and_backfilled_transforms_that_are_accepted_read_from_the_start(
    tmp_path: Path, change: Callable[[str], str], begins: list[str]
) -> None:
    world = world_of(tmp_path)
    numbers(world, 5, 5)
    world.step()
    changed = world_of(tmp_path, change(CATALOG))
    changed.wall = world.wall + 10_000_000
    run = changed.run(accepted=begins and ["r/whole"])

    assert [each.name for each in run.tasks["r/whole"].beginning.again] == begins
    run.step()
    run.close()
    times = [row[3] for row in changed.rows("r/whole")]
    # One document per tick and key; state is kept, so what is read again counts on.
    assert times == (['{"n":5,"times":3}'] if not begins else ['{"n":5,"times":3}', '{"n":5,"times":7}'])


WIDE = """
collections:
  r/wide:
    schema: &wide
      type: object
      required: [k, n]
      reduce: {strategy: merge}
      properties: {k: {type: string}, n: {type: integer, reduce: {strategy: sum}}}
    key: [/k]
  r/sums:
    schema: *wide
    key: [/k]
    derive:
      using: {sqlite: {}}
      transforms: [{name: all, source: r/wide, shuffle: {key: [/k]}, lambda: SELECT $flow_document AS json;}]
"""


@pytest.mark.parametrize("shards", [1, 3])
def test_integers_beyond_64_bits_are_exact_from_end_to_end(tmp_path: Path, shards: int) -> None:
    world = world_of(tmp_path, WIDE)
    world.ingest("r/wide", [{"k": "a", "n": 2**70 + 1}, {"k": "a", "n": 2**64}, {"k": "b", "n": -(2**90)}], clock=None)
    world.wall += 10_000_000
    world.step(shards=shards)

    assert [row[3] for row in world.rows("r/sums")] == [
        f'{{"k":"a","n":{2**70 + 1 + 2**64}}}',
        f'{{"k":"b","n":{-(2**90)}}}',
    ]
