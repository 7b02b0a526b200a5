"""`flowctl test`."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.console import visible
from derive.cli.options import catalog_options, limit_options, limited_catalog, open_store, stored_folder
from derive.cli.test_results import json_report, junit_report, render_failure

if TYPE_CHECKING:
    from derive.catalog.loading import Resources
    from derive.protocol.specs import CatalogSpec, LambdaLimits
    from derive.testing import TestResult


@click.command()
@catalog_options
@click.option("--strict", is_flag=True, help="Refuse properties and items that a verify step does not mention.")
@click.option(
    "--name", "names", multiple=True, metavar="GLOB", help="Run only tests with this name, as in 'shop/*' (repeatable)."
)
@click.option("-x", "--fail-fast", is_flag=True, help="Stop after the first failed test.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of tests that run at the same time.",
)
@click.option(
    "--create", metavar="NAME", help="Print a test out of stored documents: those from which a document follows."
)
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Compare the contents of verified collections with files in DIR; missing files are written.",
)
@click.option("--update", is_flag=True, help="With --snapshot: write the files again.")
@click.option("--collection", help="With --create: the derived collection.")
@click.option("--key", "key_text", metavar="JSON", help="With --create: the document's key, as a JSON array.")
@click.option("--watch", is_flag=True, help="Run the tests again after each edit of the catalog, until Ctrl-C.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "junit"]),
    help="Format of the output; junit is XML for CI systems.  [default: a line for each test]",
)
@limit_options
def command(
    *,
    source: Path,
    names: tuple[str, ...],
    output: str | None,
    jobs: int,
    data: Path | None,
    create: str | None,
    collection: str | None,
    key_text: str | None,
    snapshot: Path | None,
    update: bool,
    strict: bool,
    fail_fast: bool,
    watch: bool,
    lambda_limits: LambdaLimits,
) -> None:
    """Run the catalog's tests, in virtual time, without starting Spark.

    With --create, the command runs no test, but prints a new one: it ingests the documents of the data folder from
    which the document of a key follows, and verifies all that follows from them. Save it in a file that the catalog
    imports.

    \b
    Examples:
      flowctl test
      flowctl test --source examples/acmebank/flow.yaml \\
        --name acmeBank/tests/balances
      flowctl test --name 'acmeBank/*' -x --watch
      flowctl test --jobs 4 -o junit > tests.xml
      flowctl test --create acmeBank/tests/account-1 \\
        --collection acmeBank/balances --key '["account-1"]' > new.tests.yaml
    """
    from derive.errors import UsageError

    if create is not None or collection is not None or key_text is not None:
        _create(source, data, create, collection, key_text)
        return
    if watch and output == "junit":
        raise UsageError("--watch has no end, so it cannot be combined with -o junit")
    if update and snapshot is None:
        raise UsageError("--update is for --snapshot")
    session = _Session(names, output, jobs, strict=strict, fail_fast=fail_fast, snapshot=snapshot, is_updated=update)
    load = partial(_loaded, source, lambda_limits)
    if watch:
        _watch(session, load)
    elif session.run(load(None)):
        raise click.exceptions.Exit(1)


def _create(source: Path, data: Path | None, create: str | None, collection: str | None, key_text: str | None) -> None:
    """Print a test out of the documents of the data folder."""
    from derive.catalog import load
    from derive.cli.console import note
    from derive.cli.created_test import create_test
    from derive.errors import UsageError

    if create is None or collection is None or key_text is None:
        raise UsageError("--create, --collection and --key belong together")
    catalog = load(source)
    with (
        closing(open_store(stored_folder(source, data), reading=True)) as store,
        tempfile.TemporaryDirectory(prefix="flowctl-test-") as scratch,
    ):
        test = create_test(store, catalog, Path(scratch), create, collection, key_text)
    click.echo(test.text)
    note(f"the test ingests {test.documents:,} document{'' if test.documents == 1 else 's'}")
    if not test.is_equal:
        note(
            f"the test does not give the stored document of {key_text}, which has state of other keys or of removed"
            " history: check what it verifies",
            level="warn",
        )


def _loaded(source: Path, lambda_limits: LambdaLimits, resources: Resources | None) -> CatalogSpec:
    from derive.catalog.build import require_sound

    spec = limited_catalog(source, lambda_limits, resources)
    require_sound(spec)
    return spec


def chosen_tests(spec: CatalogSpec, names: Sequence[str]) -> list[str] | None:
    """Return the names of the tests with names or glob patterns from a user; None for all without names.

    Raises:
        UsageError: a name is unknown, or no test matches a pattern.
    """
    from fnmatch import fnmatchcase

    from derive.errors import UsageError

    chosen: list[str] = []
    for name in names:
        matching = [name] if name in spec.tests else [test for test in spec.tests if fnmatchcase(test, name)]
        if not matching and not set(name) & set("*?["):
            spec.find_test(name)
        if not matching:
            raise UsageError(f"no test has a name like '{name}'")
        chosen += matching
    return chosen if names else None


class _Session:
    """The options of the tests, and their reports.

    Args:
        names: names and glob patterns of the tests; none for all.
        output: table, json or junit.
        jobs: number of tests that run at the same time.
        strict: whether to refuse what a verify step does not mention.
        fail_fast: whether to stop after the first failure.
        snapshot: folder of snapshots; None for none.
        is_updated: whether snapshots are written again.
    """

    def __init__(
        self,
        names: Sequence[str],
        output: str | None,
        jobs: int,
        *,
        strict: bool,
        fail_fast: bool,
        snapshot: Path | None,
        is_updated: bool,
    ) -> None:
        self._snapshot, self._is_updated = snapshot, is_updated
        self._names, self._output, self._jobs = names, output, jobs
        self._strict, self._fail_fast = strict, fail_fast

    def run(self, spec: CatalogSpec) -> bool:
        """Run the tests of a catalog, and return whether one has failed."""
        from derive.cli.console import note
        from derive.testing import Snapshots, run_tests

        begun = time.perf_counter()
        results: list[TestResult] = []
        snapshots = None if self._snapshot is None else Snapshots(self._snapshot, is_updated=self._is_updated)
        chosen = chosen_tests(spec, self._names)
        tests = run_tests(spec, chosen, strict=self._strict, jobs=self._jobs, snapshots=snapshots)
        for result in tests:
            results.append(result)
            for entry in result.said:
                note(f"{entry['task']}: {entry['message']}", level=entry["level"], task=entry["task"])
            self._report(result)
            if result.failure is not None and self._fail_fast:
                tests.close()
                break
        if snapshots is not None and snapshots.written:
            written = len(snapshots.written)
            note(f"{written} snapshot{'' if written == 1 else 's'} written into {self._snapshot}")
        failed = sum(result.failure is not None for result in results)
        if snapshots is not None and failed:
            note("if the new contents are right, write the snapshots again: --update")
        seconds = time.perf_counter() - begun
        if self._output == "junit":
            click.echo(junit_report(results, seconds))
        passed = len(results) - failed
        tally = f"{failed} failed, {passed} passed" if failed else f"{passed} passed"
        click.echo(f"{tally} in {seconds:.1f} s", err=self._output in {"json", "junit"})
        return failed > 0

    def _report(self, result: TestResult) -> None:
        name = result.test.name
        if self._output == "json":
            click.echo(json_report(result))
        elif self._output == "junit":
            return
        elif result.failure is None:
            click.echo(f"{click.style('PASS', fg='green')} {name}  ({result.seconds:.2f} s)")
        else:
            click.echo(f"{click.style('FAIL', fg='red')} {name} · {visible(render_failure(result.failure))}")


def _watch(session: _Session, load: Callable[[Resources], CatalogSpec]) -> None:
    """Run the tests, and again after each edit of a file of the catalog, until Ctrl-C."""
    from derive.catalog.loading import Resources
    from derive.cli.applying import CatalogWatch
    from derive.cli.console import note, print_error
    from derive.errors import FlowError

    edited = threading.Event()
    resources = Resources()
    outcome: CatalogSpec | FlowError
    try:
        outcome = load(resources)
    except FlowError as error:
        outcome = error
    try:
        with CatalogWatch(load, resources, edited.set) as edits:
            while True:
                try:
                    if isinstance(outcome, FlowError):
                        raise outcome
                    session.run(outcome)
                except FlowError as error:
                    print_error(error)
                note("waiting for an edit of the catalog; stop with Ctrl-C")
                while (edit := edits.take()) is None:
                    edited.wait()
                    edited.clear()
                note(f"{', '.join(edit.files)} changed")
                outcome = edit.outcome
    except KeyboardInterrupt:
        note("stopped")
