"""Results and coverage of catalog tests as text, as JSON, and as JUnit XML, which CI systems show.

In JUnit XML, a testcase stands for each test: its class is the name up to the last slash, and a failure has the
difference and the position of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from derive.cli.console import visible
from derive.plural import counted

if TYPE_CHECKING:
    from derive.coverage import DerivationCoverage
    from derive.testing import Difference, Failure, TestResult


def render_failure(failure: Failure) -> str:
    """Return the reason why a test failed, as lines of text that show only differences."""
    from derive.cli.console import render_error

    lines = [f"step {failure.step} · {failure.description}    {failure.position}"]
    if failure.error is not None:
        lines += [f"  {line}" for line in render_error(failure.error).split("\n")]
    for mismatch in failure.mismatches:
        lines += mismatch.lines()
    lines += [f"  still to come: {step}" for step in failure.to_come]
    return "\n".join(lines)


def json_report(result: TestResult) -> str:
    """Return a result as one line of JSON."""
    from derive.document.exact import dump_exact

    failure = result.failure
    row = {"test": result.test.name, "passed": failure is None, "seconds": round(result.seconds, 3)}
    if failure is not None:
        position = failure.position
        row |= {"step": failure.step, "what": failure.description, "failure": render_failure(failure)}
        row |= {"file": position.file, "line": position.line}
        differences = [(mismatch.key, one) for mismatch in failure.mismatches for one in mismatch.differences]
        row["differences"] = [_difference(key, one) for key, one in differences]
        row["still to come"] = list(failure.to_come)
    return dump_exact(row).decode()


def _difference(key: str, difference: Difference) -> dict[str, Any]:
    """Return a difference of a document; a missing value has no property."""
    from derive.document.pointer import MISSING

    values = {"expected": difference.expected, "actual": difference.actual}
    present = {name: value for name, value in values.items() if value is not MISSING}
    return {"key": key, "pointer": difference.pointer, **present}


def coverage_text(coverage: DerivationCoverage) -> str:
    """Return the coverage of a derivation as lines of text: a summary, and a line for each miss."""
    branches = f", {coverage.reached_branches} of {counted(coverage.branches, 'branch')}" if coverage.branches else ""
    transforms = f"{coverage.reached_transforms} of {counted(coverage.transforms, 'transform')}"
    lines = [f"{coverage.derivation}: {transforms}{branches}"]
    lines += [f"  {miss.position}  {miss.transform}: {miss.what}" for miss in coverage.misses]
    return "\n".join(lines)


def coverage_json(coverage: DerivationCoverage) -> str:
    """Return the coverage of a derivation as one line of JSON."""
    from derive.document.exact import dump_exact

    row = {
        "derivation": coverage.derivation,
        "transforms": coverage.transforms,
        "reached_transforms": coverage.reached_transforms,
        "branches": coverage.branches,
        "reached_branches": coverage.reached_branches,
        "misses": [
            {
                "transform": miss.transform,
                "what": miss.what,
                "file": miss.position.file,
                "line": miss.position.line,
                "column": miss.position.column,
            }
            for miss in coverage.misses
        ],
    }
    return dump_exact(row).decode()


def junit_report(results: Sequence[TestResult], seconds: float) -> str:
    """Return the XML of results.

    Args:
        results: the results, in their order.
        seconds: duration of all tests.
    """
    failed = sum(result.failure is not None for result in results)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(f'<testsuites tests="{len(results)}" failures="{failed}" time="{seconds:.3f}">')
    lines.append(
        f'  <testsuite name="flowctl test" tests="{len(results)}" failures="{failed}" errors="0" time="{seconds:.3f}">'
    )
    for result in results:
        lines += _testcase(result)
    return "\n".join([*lines, "  </testsuite>", "</testsuites>"])


def _testcase(result: TestResult) -> list[str]:
    group, _, name = result.test.name.rpartition("/")
    position = result.test.position
    attributes = {
        "classname": group or "flowctl",
        "name": name,
        "file": position.file,
        "line": str(position.line),
        "time": f"{result.seconds:.3f}",
    }
    begin = "    <testcase " + " ".join(f"{key}={_quoted(value)}" for key, value in attributes.items())
    output = "\n".join(f"{entry['task']}: {entry['message']}" for entry in result.messages)
    out = [f"      <system-out>{_text(output)}</system-out>"] if output else []
    if result.failure is None:
        return [f"{begin}>", *out, "    </testcase>"] if out else [f"{begin}/>"]
    message = _quoted(f"step {result.failure.step} · {result.failure.description}")
    text = _text(render_failure(result.failure))
    return [f"{begin}>", f"      <failure message={message}>{text}</failure>", *out, "    </testcase>"]


def _text(text: str) -> str:
    return escape(visible(text))


def _quoted(text: str) -> str:
    return f'"{_text(text)}"'
