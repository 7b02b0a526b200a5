"""`flowctl test`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.console import visible
from derive.cli.options import limit_options, limited_catalog, output_option, source_option

if TYPE_CHECKING:
    from derive.protocol.specs import LambdaLimits
    from derive.testing import Failure, Mismatch


@click.command()
@source_option
@click.option("--strict", is_flag=True, help="Refuse properties and items that a verify step does not mention.")
@click.option("--name", "names", multiple=True, help="Run only this test (repeatable).")
@output_option
@limit_options
def command(
    source: Path,
    names: tuple[str, ...],
    output: str | None,
    *,
    strict: bool,
    lambda_limits: LambdaLimits,
) -> None:
    """Run the catalog's tests, in virtual time, without starting Spark.

    \b
    Examples:
      flowctl test
      flowctl test --source examples/acmebank/flow.yaml \\
        --name acmeBank/tests/balances
    """
    from derive.catalog.build import require_sound
    from derive.cli.console import note
    from derive.testing import run_tests

    begun = time.perf_counter()
    spec = limited_catalog(source, lambda_limits)
    for name in names:
        spec.find_test(name)
    require_sound(spec)
    passed = failed = 0
    for result in run_tests(spec, names or None, strict=strict):
        if result.failure is None:
            passed += 1
        else:
            failed += 1
        for entry in result.said:
            note(f"{entry['task']}: {entry['message']}", level=entry["level"], task=entry["task"])
        if output == "json":
            _print_json(result.test.name, result.seconds, result.failure)
        elif result.failure is None:
            click.echo(f"{click.style('PASS', fg='green')} {result.test.name}  ({result.seconds:.2f} s)")
        else:
            click.echo(
                f"{click.style('FAIL', fg='red')} {result.test.name} · {visible(render_failure(result.failure))}"
            )
    tally = f"{failed} failed, {passed} passed" if failed else f"{passed} passed"
    click.echo(f"{tally} in {time.perf_counter() - begun:.1f} s", err=output == "json")
    if failed:
        raise click.exceptions.Exit(1)


def _print_json(name: str, seconds: float, failure: Failure | None) -> None:
    from derive.document.exact import dump_exact

    row = {"test": name, "passed": failure is None, "seconds": round(seconds, 3)}
    if failure is not None:
        row |= {"step": failure.step, "what": failure.description, "failure": render_failure(failure)}
    click.echo(dump_exact(row).decode())


def render_failure(failure: Failure) -> str:
    """Return the reason why a test failed, as lines of text that show only differences."""
    from derive.cli.console import render_error

    lines = [f"step {failure.step} · {failure.description}    {failure.position}"]
    if failure.error is not None:
        lines += [f"  {line}" for line in render_error(failure.error).split("\n")]
    for mismatch in failure.mismatches:
        lines += _render_mismatch(mismatch)
    lines += [f"  still to come: {step}" for step in failure.to_come]
    return "\n".join(lines)


def _render_mismatch(mismatch: Mismatch) -> list[str]:
    from derive.document.exact import dump_exact
    from derive.document.pointer import MISSING

    key = mismatch.key
    lines = []
    for difference in mismatch.differences:
        if difference.pointer == "" and MISSING in (difference.expected, difference.actual):
            missing = difference.actual is MISSING
            document = dump_exact(difference.expected if missing else difference.actual).decode()
            lines.append(
                f"  {key}  {'is missing; expected' if missing else 'is not expected; the test produced'} {document}"
            )
            continue
        shown = [
            "nothing" if value is MISSING else dump_exact(value).decode()
            for value in (difference.expected, difference.actual)
        ]
        lines.append(f"  {key}  {difference.pointer}   expected  {shown[0]}")
        lines.append(f"  {' ' * len(key)}  {' ' * len(difference.pointer)}   actual    {shown[1]}")
    return lines
