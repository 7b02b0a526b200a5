"""Catalog tests: steps in virtual time, what a failure says, and what lambdas say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

from conftest import write_catalog

from derive.catalog import load
from derive.document.pointer import MISSING
from derive.errors import LambdaError
from derive.protocol.specs import CatalogSpec
from derive.testing import Difference, TestResult, run_tests

CATALOG = """
collections:
  t/numbers:
    schema: {{type: object, required: [id], properties: {{id: {{type: integer}}, n: {{type: integer}}}}}}
    key: [/id]
  t/late:
    schema:
      type: object
      required: [id]
      reduce: {{strategy: merge}}
      properties: {{id: {{type: integer}}, times: {{type: integer, reduce: {{strategy: sum}}}}}}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: now, source: t/numbers, shuffle: any, lambda: "SELECT $id, 1 AS times;"}}
        - {{name: later, source: t/numbers, shuffle: any, readDelay: 1h, lambda: "SELECT $id, 10 AS times;"}}
  t/other:
    schema: {{type: object, required: [id, at], properties: {{id: {{type: integer}}, at: {{type: string}}}}}}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: stamp, source: t/numbers, shuffle: any, lambda: "SELECT $id, datetime('now') AS at WHERE json(iif($n = 9, 'x', 1)) IS NOT NULL;"}}
tests:
  t/test:
{steps}
"""
INGEST = """
    - ingest: {collection: t/numbers, documents: [{id: 2, n: 1}, {id: 1, n: 2}, {id: 2, n: 3}]}
"""


def run(folder: Path, steps: str, *, strict: bool = False) -> TestResult:
    (result,) = run_tests(load(write_catalog(folder, CATALOG.format(steps=steps))), strict=strict)
    return result


def test_a_verify_step_waits_for_delayed_reads_of_its_collection_only(tmp_path: Path) -> None:
    at = "'2024-01-01 00:00:00'"
    steps = f"""
{INGEST}
    - verify: {{collection: t/other, documents: [{{id: 1, at: {at}}}, {{id: 2, at: {at}}}]}}
    - verify: {{collection: t/late, documents: [{{id: 1, times: 11}}, {{id: 2, times: 11}}]}}
    - ingest: {{collection: t/numbers, documents: [{{id: 3, n: 1}}]}}
    - verify: {{collection: t/other, documents: [{{id: 1}}, {{id: 2}}, {{id: 3, at: '2024-01-01 01:00:01'}}]}}
"""
    result = run(tmp_path, steps)
    assert result.failure is None, result.failure


def test_failure_reports_its_step_and_differences(tmp_path: Path) -> None:
    steps = f"""
{INGEST}
    - verify: {{collection: t/late, documents: [{{id: 0, times: 1}}, {{id: 1, times: 12}}]}}
"""
    failure = run(tmp_path, steps).failure

    assert failure is not None
    assert (failure.step, failure.description, failure.position.line) == (2, "verify t/late", 31)
    assert [(each.key, each.differences) for each in failure.mismatches] == [
        ("[0]", (Difference("", {"id": 0, "times": 1}, MISSING),)),
        ("[1]", (Difference("/times", 12, 11),)),
        ("[2]", (Difference("", MISSING, {"id": 2, "times": 11}),)),
    ]


def test_strict_tests_compare_unmentioned_fields(tmp_path: Path) -> None:
    steps = f"{INGEST}\n    - verify: {{collection: t/late, documents: [{{id: 1}}, {{id: 2, times: 11}}]}}\n"

    assert run(tmp_path, steps).failure is None
    failure = run(tmp_path, steps, strict=True).failure
    assert failure is not None
    assert [each.differences for each in failure.mismatches] == [(Difference("/times", MISSING, 11),)]


def test_a_step_that_fails_ends_the_test(tmp_path: Path) -> None:
    steps = """
    - ingest: {collection: t/numbers, documents: [{id: 1, n: 9}]}
    - verify: {collection: t/other, documents: []}
"""
    failure = run(tmp_path, steps).failure
    assert failure is not None
    assert (failure.step, failure.description, failure.mismatches) == (1, "ingest t/numbers", ())
    assert isinstance(failure.error, LambdaError)
    assert "malformed JSON" in failure.error.message


def test_tests_begin_with_empty_collections(tmp_path: Path) -> None:
    steps = f"""{INGEST}
  t/again:
{INGEST}
    - verify: {{collection: t/late, documents: [{{id: 1, times: 11}}, {{id: 2, times: 11}}]}}
"""
    catalog = load(write_catalog(tmp_path, CATALOG.format(steps=steps)))

    assert [(each.test.name, each.failure) for each in run_tests(catalog)] == [("t/test", None), ("t/again", None)]
    assert [each.test.name for each in run_tests(catalog, ["t/again"])] == ["t/again"]


def test_test_results_have_messages_of_lambdas(catalog_of: Callable[..., CatalogSpec]) -> None:
    catalog = catalog_of(
        """
        collections:
          t/in: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
          t/out:
            schema: {type: object, required: [id], properties: {id: {type: integer}}}
            key: [/id]
            derive:
              using: {typescript: {module: out.ts}}
              transforms: [{name: pass, source: t/in, shuffle: any}]
        tests:
          t/test:
            - ingest: {collection: t/in, documents: [{id: 7}]}
            - verify: {collection: t/out, documents: [{id: 7}]}
        """,
        out__ts="""
        import { Document, IDerivation, SourcePass } from 'flow/t/out.ts';
        export class Derivation extends IDerivation {
            pass(read: { doc: SourcePass }): Document[] {
                console.warn('seen', read.doc);
                return [read.doc];
            }
        }
        """,
    )
    (result,) = run_tests(catalog)

    assert result.failure is None, result.failure
    assert [(each["level"], each["task"]) for each in result.messages] == [("warn", "t/out")]
    assert result.messages[0]["message"].startswith("seen")


def test_documents_without_key_properties_are_matched_in_key_order(tmp_path: Path) -> None:
    assert (
        run(tmp_path, f"{INGEST}\n    - verify: {{collection: t/late, documents: [{{times: 11}}, {{}}]}}\n").failure
        is None
    )

    failure = run(
        tmp_path, f"{INGEST}\n    - verify: {{collection: t/late, documents: [{{}}, {{times: 12}}, {{}}]}}\n"
    ).failure
    assert failure is not None
    assert [(each.key, each.differences) for each in failure.mismatches] == [
        ("[2]", (Difference("/times", 12, 11),)),
        ("document 3", (Difference("", {}, MISSING),)),
    ]


def test_key_expected_twice_is_missing_once(tmp_path: Path) -> None:
    steps = f"{INGEST}\n    - verify: {{collection: t/late, documents: [{{id: 1, times: 99}}, {{id: 1, times: 11}}, {{id: 2}}]}}\n"
    failure = run(tmp_path, steps).failure

    assert failure is not None
    assert [(each.key, each.differences) for each in failure.mismatches] == [
        ("[1]", (Difference("/times", 99, 11),)),
        ("[1]", (Difference("", {"id": 1, "times": 11}, MISSING),)),
    ]


DIRECT = """
collections:
  t/events: {schema: &s {type: object, required: [id], properties: {id: {type: integer}, n: {type: integer}}}, key: [/id]}
  t/copies:
    schema: *s
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: of, source: t/events, shuffle: any, lambda: "SELECT $id, $n"}]}
  t/late:
    schema: *s
    key: [/id]
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 10s}
      transforms: [{name: of, source: t/copies, shuffle: any, readDelay: 1h, lambda: "SELECT $id, $n"}]
  t/own:
    schema: *s
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: of, source: t/own, shuffle: any, lambda: "SELECT $id, $n + 1 AS n WHERE $n < 3"}]}
tests:
"""
REACHED = {
    "t/events": ("t/events", "t/copies", "t/late"),
    "t/copies": ("t/copies", "t/late"),
    "t/late": ("t/late",),
    "t/own": ("t/own",),
}
"""Documents that are ingested into a collection, derived or not, and the collection where they are read."""


def test_documents_ingested_into_derived_collections_are_found_in_any_order(tmp_path: Path) -> None:
    """Each order of ingesting into one or two collections, and verifying each one after each step."""
    text = DIRECT
    orders = [order for size in (1, 2) for order in permutations(REACHED, size)]
    for number, order in enumerate(orders):
        text += f"  t/test-{number}:\n"
        held: dict[str, list[str]] = {name: [] for name in REACHED}
        for document, name in enumerate(order):
            text += f"    - ingest: {{collection: {name}, documents: [{{id: {document}, n: 3}}]}}\n"
            for reached in REACHED[name]:
                held[reached].append(f"{{id: {document}, n: 3}}")
            for verified, documents in held.items():
                text += f"    - verify: {{collection: {verified}, documents: [{', '.join(documents)}]}}\n"
    results = list(run_tests(load(write_catalog(tmp_path, text))))
    assert len(results) == len(orders)
    assert [result.failure for result in results if result.failure] == []
