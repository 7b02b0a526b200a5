"""The plugin of pytest: tests of catalogs as items, and the fixture that runs a catalog in Python."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

pytest_plugins = ["pytester"]
PLUGIN = ("-p", "derive.pytest_plugin", "-p", "no:randomly", "-p", "no:cacheprovider")
CATALOG = """\
collections:
  shop/orders:
    key: [/id]
    schema:
      type: object
      required: [id, customer]
      properties: {id: {type: integer}, customer: {type: string}, amount: {type: number}}
  shop/spending:
    key: [/customer]
    schema:
      type: object
      required: [customer]
      reduce: {strategy: merge}
      properties: {customer: {type: string}, spent: {type: number, reduce: {strategy: sum}}}
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: fromOrders, source: shop/orders, shuffle: any, lambda: "SELECT $customer, $amount AS spent;"}
        - {name: dayLater, source: shop/orders, shuffle: any, readDelay: 1d, lambda: "SELECT $customer, 100 AS spent;"}
"""
TESTS = """\
tests:
  shop/tests/passes:
    - ingest: {collection: shop/orders, documents: [{id: 1, customer: ann, amount: 2}]}
    - verify: {collection: shop/spending, documents: [{customer: ann, spent: 102}]}
  shop/tests/fails:
    - ingest: {collection: shop/orders, documents: [{id: 1, customer: ann, amount: 2}]}
    - verify: {collection: shop/spending, documents: [{customer: ann, spent: 3}]}
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    (pytester.path / "flow.yaml").write_text(CATALOG + TESTS)
    return pytester


def test_tests_of_a_catalog_are_items_of_pytest(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(*PLUGIN, "flow.yaml", "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "flow.yaml::shop/tests/passes PASSED*",
            "flow.yaml::shop/tests/fails FAILED*",
            "step 2 · verify shop/spending    flow.yaml:26:*",
            '  [[]"ann"]  /spent   expected  3',
            "             *    actual    102",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    result = project.runpytest_inprocess(*PLUGIN, "flow.yaml::shop/tests/passes")
    result.assert_outcomes(passed=1)


def test_catalogs_are_collected_by_the_setting_alone(project: pytest.Pytester) -> None:
    assert project.runpytest_inprocess(*PLUGIN).ret == pytest.ExitCode.NO_TESTS_COLLECTED
    project.makeini("[pytest]\nflow_catalogs = flow.yaml\nflow_strict = true\n")
    project.runpytest_inprocess(*PLUGIN, "-k", "passes").assert_outcomes(passed=1, deselected=1)


def test_wrong_catalog_is_an_error_of_the_collection(project: pytest.Pytester) -> None:
    (project.path / "flow.yaml").write_text(CATALOG.replace("source: shop/orders", "source: shop/order"))
    result = project.runpytest_inprocess(*PLUGIN, "flow.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*error[[]E*'shop/order'*", "*flow.yaml:18:*", "*did you mean 'shop/orders'*"])


def test_fixture_runs_a_catalog_in_python(project: pytest.Pytester) -> None:
    project.makepyfile(
        dedent(
            """
            import pytest
            from derive.errors import DocumentError, UsageError

            def test_untimed(flow_catalog):
                session = flow_catalog()
                session.ingest("shop/orders", [{"id": 1, "customer": "ann", "amount": 2}])
                session.ingest("shop/orders", [{"id": 2, "customer": "ben", "amount": 5}])
                assert session.documents("shop/spending") == [
                    {"customer": "ann", "spent": 102}, {"customer": "ben", "spent": 105}
                ]
                with pytest.raises(DocumentError, match="fails its schema at '/id'"):
                    session.ingest("shop/orders", [{"id": "x", "customer": "ann"}])
                with pytest.raises(UsageError, match="did you mean 'shop/orders'"):
                    session.ingest("shop/order", [])
                with pytest.raises(UsageError, match="needs a session with times"):
                    session.advance("1h")

            def test_timed(flow_catalog):
                session = flow_catalog("flow.yaml", begin="2024-05-01T09:00:00Z")
                session.ingest("shop/orders", [{"id": 1, "customer": "ann", "amount": 2}], at="+20m")
                session.verify("shop/spending", [{"customer": "ann", "spent": 2}])
                session.advance("23h 59m")
                session.verify("shop/spending", [{"customer": "ann", "spent": 2}], strict=True)
                session.advance("1m")
                session.verify("shop/spending", [{"customer": "ann", "spent": 102}])
                with pytest.raises(UsageError, match="time cannot go back"):
                    session.ingest("shop/orders", [], at="+1h")

            def test_failing(flow_catalog):
                session = flow_catalog()
                session.ingest("shop/orders", [{"id": 1, "customer": "ann", "amount": 2}])
                session.verify("shop/spending", [{"customer": "ann", "spent": 3}, {"customer": "zoe"}])
            """
        )
    )
    result = project.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*AssertionError: 'shop/spending' is not as expected:",
            '*[[]"ann"]  /spent   expected  3',
            "*actual    102",
            '*[[]"zoe"]  is missing; expected {"customer":"zoe"}',
        ]
    )


def test_plugin_imports_nothing_of_the_runtime_before_its_use() -> None:
    text = "import sys, derive.pytest_plugin; print([name for name in sys.modules if name.startswith('derive.')])"
    modules = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert modules.strip() == "['derive.pytest_plugin']"


def test_fixture_shows_an_error_at_the_line_of_the_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        def test_misspelt(flow_catalog):
            flow_catalog().ingest("shop/ordres", [{"id": 1}])
        """
    )
    result = project.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert ">       flow_catalog().ingest(" in text
    assert "shop/orders" in text  # the name that was meant
    assert "/derive/" not in text
