"""`flowctl test`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.console import fitted, is_quiet, visible
from derive.cli.options import catalog_options, limit_options, limited_catalog, open_store, quiet_option, stored_folder
from derive.cli.test_results import coverage_json, coverage_text, json_report, junit_report, render_failure
from derive.plural import counted

if TYPE_CHECKING:
    from derive.catalog.loading import Resources
    from derive.coverage import Coverage
    from derive.protocol.specs import CatalogSpec, LambdaLimits
    from derive.testing import Snapshots, TestResult


_MOST_AHEAD = 6
"""Most processes of modules that start ahead; the pool keeps a few more."""


_MOST_MARGIN = 14
"""Characters in which an excerpt of a failure has the number of its line, and a bar."""


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
    help="Number of tests that run at the same time.  [default: the number of processors, at most 4]",
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
@click.option(
    "--coverage", is_flag=True, help="List the transforms, and branches of SQL lambdas, that no document has reached."
)
@click.option(
    "--fail-under",
    type=click.IntRange(0, 100),
    metavar="N",
    help="With --coverage: fail if fewer than N percent of transforms and branches are reached.",
)
@click.option("--watch", is_flag=True, help="Run the tests again after each edit of the catalog, until Ctrl-C.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "junit"]),
    help="Format of the output; junit is XML for CI systems.  [default: a line for each test]",
)
@quiet_option
@limit_options
def command(
    *,
    source: Path,
    names: tuple[str, ...],
    output: str | None,
    jobs: int | None,
    data: Path | None,
    create: str | None,
    collection: str | None,
    key_text: str | None,
    snapshot: Path | None,
    update: bool,
    coverage: bool,
    fail_under: int | None,
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
      flowctl test --coverage --fail-under 80
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
    if fail_under is not None and not coverage:
        raise UsageError("--fail-under is for --coverage")
    if coverage and output == "junit":
        raise UsageError("JUnit XML has no coverage: use -o json")
    session = _Session(
        _Choice(
            names, jobs or processors(most=4), strict=strict, fail_fast=fail_fast, snapshot=snapshot, is_updated=update
        ),
        output,
        is_covered=coverage,
        least=fail_under or 0,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that data folders are removed, as at Ctrl-C
    load = partial(_loaded, source, lambda_limits, names)
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
    from derive.scratch import scratch_folder

    if create is None or collection is None or key_text is None:
        raise UsageError("--create, --collection and --key belong together")
    catalog = load(source)
    with (
        closing(open_store(stored_folder(source, data), reading=True)) as store,
        scratch_folder() as scratch,
    ):
        test = create_test(store, catalog, scratch, create, collection, key_text)
    click.echo(test.text)
    note(f"the test ingests {counted(test.documents, 'document')}")
    if not test.is_equal:
        note(
            f"the test does not give the stored document of {key_text}, which has state of other keys or of removed"
            " history: check what it verifies",
            level="warn",
        )


def _loaded(
    source: Path, lambda_limits: LambdaLimits, names: Sequence[str], resources: Resources | None
) -> CatalogSpec:
    """Load a catalog, check its code while the processes of its modules start, and print each warning once."""
    from derive.catalog.build import require_sound
    from derive.cli.console import print_warning_once

    spec = limited_catalog(source, lambda_limits, resources)
    start_modules_ahead(spec, names)
    for issue in require_sound(spec):
        print_warning_once(issue)
    return spec


def start_modules_ahead(spec: CatalogSpec, names: Sequence[str]) -> None:
    """Start a process for each of the first modules that the chosen tests run; the tests report errors."""
    from derive.catalog.graph import tasks_of
    from derive.errors import UsageError
    from derive.protocol.derive import StartsAhead
    from derive.protocol.entry_points import find_runtime

    try:
        chosen = chosen_tests(spec, names)
    except UsageError:
        return
    tests = sorted((spec.tests[name] for name in chosen or spec.tests), key=lambda test: test.position)
    tasks = dict.fromkeys(task for test in tests for task in tasks_of(spec, test) if task in spec.derivations)
    runtimes = [(find_runtime(spec.derivations[task].connector), spec.derivations[task]) for task in tasks]
    starting = [(runtime, task) for runtime, task in runtimes if isinstance(runtime, StartsAhead)]
    for runtime, derivation in starting[:_MOST_AHEAD]:
        runtime.start_ahead(derivation)


def processors(*, most: int) -> int:
    """Return the number of processors that this process may use, up to a limit."""
    return min(most, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


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


@dataclass(frozen=True, slots=True)
class _Choice:
    """The tests to run, and their strictness.

    Attributes:
        names: names and glob patterns of the tests; none for all.
        jobs: number of tests that run at the same time.
        strict: whether to refuse what a verify step does not mention.
        fail_fast: whether to stop after the first failure.
        snapshot: folder of snapshots; None for none.
        is_updated: whether snapshots are written again.
    """

    names: Sequence[str]
    jobs: int
    _: KW_ONLY
    strict: bool
    fail_fast: bool
    snapshot: Path | None
    is_updated: bool


class _Session:
    """Runs the tests, and reports their results.

    Args:
        choice: the tests to run.
        output: table, json or junit.
        is_covered: whether to report the coverage of the derivations.
        least: least percentage of transforms and branches that must be reached.
    """

    def __init__(self, choice: _Choice, output: str | None, *, is_covered: bool, least: int) -> None:
        self._choice, self._output = choice, output
        self._is_covered, self._least = is_covered, least

    def run(self, spec: CatalogSpec) -> bool:
        """Run the tests of a catalog, and return whether one has failed, or the coverage is too low."""
        from derive.cli.console import note
        from derive.coverage import Coverage
        from derive.testing import Snapshots

        begun = time.perf_counter()
        folder = self._choice.snapshot
        snapshots = None if folder is None else Snapshots(folder, is_updated=self._choice.is_updated)
        coverage = Coverage() if self._is_covered else None
        results = self._results(spec, snapshots, coverage)
        failed = sum(result.failure is not None for result in results)
        _note_snapshots(snapshots, folder, failed)
        seconds = time.perf_counter() - begun
        if self._output == "junit":
            click.echo(junit_report(results, seconds))
        is_short = coverage is not None and self._report_coverage(coverage, spec)
        passed = len(results) - failed
        tally = f"{failed} failed, {passed} passed" if failed else f"{passed} passed"
        click.echo(f"{tally} in {seconds:.1f} s", err=self._output in {"json", "junit"})
        if not spec.tests:
            note("the catalog has no tests: write them below 'tests:'")
        return failed > 0 or is_short

    def _results(self, spec: CatalogSpec, snapshots: Snapshots | None, coverage: Coverage | None) -> list[TestResult]:
        """Run the tests, and report and return each result."""
        from derive.cli.console import Progress, note
        from derive.testing import run_tests

        choice, results = self._choice, []
        names = chosen_tests(spec, choice.names)
        total = len(spec.tests if names is None else set(names))
        tests = run_tests(
            spec,
            names,
            strict=choice.strict,
            jobs=choice.jobs,
            snapshots=snapshots,
            coverage=coverage,
        )
        with Progress("test") as progress:
            progress.show("test", 0, total)
            for result in tests:
                results.append(result)
                progress.pause()
                for entry in result.messages:
                    note(f"{entry['task']}: {entry['message']}", level=entry["level"], task=entry["task"])
                self._report(result)
                progress.show("test", len(results), total)
                if result.failure is not None and choice.fail_fast:
                    tests.close()
                    break
            progress.stop("test")
        return results

    def _report_coverage(self, coverage: Coverage, spec: CatalogSpec) -> bool:
        """Report the coverage, and return whether it is too low."""
        from derive.cli.console import note

        derivations = list(coverage.of(spec))
        for derivation in derivations:
            as_json = self._output == "json"
            click.echo(coverage_json(derivation) if as_json else fitted(visible(coverage_text(derivation))))
        reached = sum(derivation.reached for derivation in derivations)
        total = sum(derivation.total for derivation in derivations)
        if self._output != "json":
            click.echo(f"reached: {reached} of {total} transforms and branches")
        is_short = 100 * reached < self._least * total
        if is_short:
            note(f"{reached} of {total} transforms and branches are less than {self._least} %", level="error")
        return is_short

    def _report(self, result: TestResult) -> None:
        name = result.test.name
        if self._output == "json":
            click.echo(json_report(result))
        elif self._output == "junit" or (result.failure is None and is_quiet()):
            return
        elif result.failure is None:
            text = fitted(f"PASS {name}  ({result.seconds:.2f} s)")
            click.echo(f"{click.style('PASS', fg='green')}{text.removeprefix('PASS')}")
        else:
            heading, *lines = f"FAIL {name} · {visible(render_failure(result.failure))}".split("\n")
            if result.failure.error is not None:  # other lines compare documents, and an excerpt has carets
                lines = [line if " | " in line[:_MOST_MARGIN] else fitted(line) for line in lines]
            text = "\n".join([fitted(heading), *lines])
            click.echo(f"{click.style('FAIL', fg='red')}{text.removeprefix('FAIL')}")


def _note_snapshots(snapshots: Snapshots | None, folder: Path | None, failed: int) -> None:
    from derive.cli.console import note

    if snapshots is not None and snapshots.written:
        note(f"{counted(len(snapshots.written), 'snapshot')} written into {folder}")
    if snapshots is not None and failed:
        note("if the new contents are right, write the snapshots again: --update")


def _watch(session: _Session, load: Callable[[Resources], CatalogSpec]) -> None:
    """Run the tests, and again after each edit of a file of the catalog, until Ctrl-C."""
    from derive.catalog.loading import Resources
    from derive.cli.applying import CatalogWatch
    from derive.cli.console import note, print_error
    from derive.cli.foreground import stopping
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
                note(f"waiting for an edit of the catalog; {stopping()}")
                while (edit := edits.take()) is None:
                    edited.wait()
                    edited.clear()
                note(f"{', '.join(edit.files)} changed")
                outcome = edit.outcome
    except KeyboardInterrupt:
        note("stopped")
