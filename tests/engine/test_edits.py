"""What is edited under a task with output is told once when it runs, and shown until it starts over."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.edits import edits_of
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import reset
from derive.engine.task_reconciler import open_changing_run
from derive.errors import StorageError

CATALOG = """
collections:
  e/numbers: {{schema: &schema {{type: object, required: [n], properties: {{n: {{type: integer}}}}}}, key: [/n]}}
  e/copies:
    schema: *schema
    key: [/n]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: {name}, source: e/numbers, shuffle: any, {options} lambda: {sql}}}
        {more}
"""
MORE = "- {name: more, source: e/numbers, shuffle: any, lambda: SELECT $n + 1000 AS n}"
BASE = 1_700_000_000_000_000
RESET = "start over: flowctl reset --task e/copies"


def text_of(*, name: str = "copy", sql: str = "SELECT $n", options: str = "", more: str = "") -> str:
    return CATALOG.format(name=name, sql=sql, options=options, more=more)


def edit(world: World, **edited: str) -> None:
    world.catalog = load(write_catalog(world.root.parent, text_of(**edited)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """One that has output."""
    text = text_of(more=MORE)
    found = World(tmp_path / "data", load(write_catalog(tmp_path, text)), wall=BASE)
    found.ingest("e/numbers", [{"n": 1, "at": format_rfc3339(BASE)}])
    found.wall = BASE + 1_000_000
    assert reported(found) == []
    return found


def reported(world: World) -> list[str]:
    """What a run says when it begins."""
    run = world.run()
    run.step()
    run.close()
    assert [task.error for task in run.tasks.values()] == [None]
    return [edit.message for edit in run.tasks["e/copies"].beginning.edits]


def shown(world: World) -> list[tuple[str, int | None]]:
    """What is shown of a task that does not run."""
    state = world.task("e/copies")
    return [(edit.message, edit.at) for edit in edits_of(world.catalog.derivations["e/copies"], state)]


EDITED = "the lambda of 'copy' was edited; documents published before stay unchanged"


@pytest.mark.parametrize(
    ("kind", "reduce", "hint"),
    [
        (
            "integer",
            "lastWriteWins",
            "to derive all again and add the results, raise 'backfill'; to replace them, start over",
        ),
        ("integer", "sum", "a raised 'backfill' would add all results a second time; to replace them, start over"),
        ("array", "append", "a raised 'backfill' would add all results a second time; to replace them, start over"),
    ],
)
def test_hint_of_an_edited_lambda_offers_a_backfill_unless_it_counts_twice(
    kind: str, reduce: str, hint: str, world: World
) -> None:
    reduced = f"m: {{type: {kind}, reduce: {{strategy: {reduce}}}}}"
    fields = f"required: [n], reduce: {{strategy: merge}}, properties: {{n: {{type: integer}}, {reduced}}}"
    text = text_of(sql="SELECT $n + 1 AS n", more=MORE).replace("*schema", f"{{type: object, {fields}}}")
    world.catalog = load(write_catalog(world.root.parent, text))
    edits = edits_of(world.catalog.derivations["e/copies"], world.task("e/copies"))
    assert [edit.hint for edit in edits if edit.message == EDITED] == [f"{hint}: flowctl reset --task e/copies"]


def test_an_edited_lambda_is_reported_once_and_shown_until_the_task_starts_over(world: World) -> None:
    edit(world, sql="SELECT $n + 1 AS n", more=MORE)
    assert shown(world) == [(EDITED, None)]
    assert reported(world) == [EDITED]
    assert shown(world) == [(EDITED, BASE + 1_000_000)]
    assert reported(world) == []

    reset(world.catalog, world.store, ["e/copies"])
    assert reported(world) == []
    assert shown(world) == []


def test_edit_undone_before_a_publication_is_shown_once(world: World) -> None:
    edit(world, sql="SELECT $n + 1 AS n", more=MORE)
    assert reported(world) == [EDITED]
    edit(world, more=MORE)
    assert reported(world) == []
    assert shown(world) == [(EDITED, BASE + 1_000_000)]


def test_edit_with_a_raised_backfill_is_not_reported(world: World) -> None:
    edit(world, sql="SELECT $n + 1 AS n", more=MORE)
    assert reported(world) == [EDITED]
    edit(world, sql="SELECT $n + 1 AS n", options="backfill: 1,", more=MORE)
    assert shown(world) == []
    assert reported(world) == []


def test_reverted_edit_is_another_edit(world: World) -> None:
    edit(world, sql="SELECT $n + 1 AS n", more=MORE)
    reported(world)
    world.wall += 2_000_000
    reported(world)
    edit(world, more=MORE)
    assert reported(world) == [EDITED]
    assert len(shown(world)) == 2


def test_white_space_around_a_lambda_is_no_edit(world: World) -> None:
    edit(world, sql="'  SELECT $n  '", more=MORE)
    assert shown(world) == []


def test_renamed_transform_waits_and_its_acceptance_is_shown_until_a_reset(world: World) -> None:
    edit(world, name="other", more=MORE)
    again = (
        "transform 'copy' was removed, and 'other' reads its source 'e/numbers': 'other' has read 1 document of 'e/numbers'"
        " (from 2023-11-14T22:13:20.000000Z on) again, as was accepted"
    )
    run, _ = open_changing_run(world.catalog, world.store, InProcessExecutor(), shards=1, accepted=["e/copies"])
    run.step()
    run.close()
    assert [edit.message for edit in run.tasks["e/copies"].beginning.edits] == [again]
    assert [message for message, _ in shown(world)] == [again]
    assert reported(world) == []
    reset(world.catalog, world.store, ["e/copies"])
    assert reported(world) == []
    assert shown(world) == []


def test_removed_transform_leaves_its_documents(world: World) -> None:
    edit(world)
    message = "transform 'more' was removed; its published documents stay"
    assert reported(world) == [message]
    assert [edit.hint for edit in world.task("e/copies").edits] == [f"to remove them, {RESET}"]


def test_edited_reductions_are_reported_once_and_shown(world: World) -> None:
    text = (world.root.parent / "flow.yaml").read_text()
    edited = text.replace("    schema: *schema\n", "    schema: {<<: *schema, reduce: {strategy: firstWriteWins}}\n")
    assert edited != text
    world.catalog = load(write_catalog(world.root.parent, edited))
    message = "its reductions were edited: readers use the new ones; stored documents stay as they were reduced"
    assert reported(world) == [message]
    assert reported(world) == []
    assert [text for text, _ in shown(world)] == [message]


def test_edits_without_published_documents_are_not_reported(tmp_path: Path) -> None:
    text = text_of(more=MORE)
    world = World(tmp_path / "data", load(write_catalog(tmp_path, text)), wall=BASE)
    assert reported(world) == []
    edit(world, sql="SELECT 2 * $n AS n")
    assert reported(world) == []
    assert shown(world) == []


def test_failing_tasks_record_no_edits(world: World) -> None:
    """Where names were swapped and swapped back, both tasks have failed in between, and derived nothing by it."""
    before = world.catalog
    edit(world, sql="SELECT $n + 1 AS n", more=MORE)
    text = (world.root.parent / "flow.yaml").read_text()
    text = text.replace("properties: {n: {type: integer}}", "properties: {n: {type: integer}, m: {type: integer}}")
    text = text.replace("[n]", "[n, m]").replace("schema: *schema\n    key: [/n]", "schema: *schema\n    key: [/n, /m]")
    world.catalog = load(write_catalog(world.root.parent, text))
    run, reconciler = open_changing_run(before, world.store, InProcessExecutor(), shards=1)
    reconciler.apply(run, world.catalog)
    run.step()
    assert isinstance(run.tasks["e/copies"].error, StorageError)
    run.close()
    assert world.task("e/copies").edits == ()

    world.catalog = before
    assert reported(world) == []
    assert shown(world) == []
