"""`flowctl preview`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.console import fitted, visible, visible_line
from derive.cli.options import (
    catalog_options,
    clock_of,
    limit_options,
    limited_catalog,
    open_store,
    output_option,
    quiet_option,
    stored_folder,
)
from derive.plural import counted

if TYPE_CHECKING:
    from derive.document.pointer import JSON
    from derive.errors import FlowError
    from derive.preview.recording import Change, Effect
    from derive.preview.run import KeyDifference
    from derive.protocol.specs import CollectionSpec, LambdaLimits
    from derive.storage.roles import Readable


def with_preview(task: str, error: FlowError) -> FlowError:
    """Return the error of a lambda with ways to a correction as the hint; other errors unchanged.

    A lambda fails, or publishes an invalid document, which is a violation with facts. `flowctl preview` shows its
    effects, and a quarantine puts the source document aside.

    Args:
        task: name of the task, or of its shadow.
        error: the error that stopped the task.
    """
    from copy import copy

    from derive.errors import LambdaError, SchemaViolation
    from derive.protocol.collection import owner_of_version

    is_published = isinstance(error, SchemaViolation) and bool(error.facts)
    if error.hint or not (is_published or isinstance(error, LambdaError)):
        return error
    hinted = copy(error)
    command = f"flowctl preview --task {owner_of_version(task) or task} --limit 1000"
    hinted.hint = f"to see the effects of each document, without a run: {command}"
    if is_published and error.title.startswith("transform"):  # and not the end of a tick
        hinted.hint = f"to put such source documents aside: 'onViolation: quarantine' at the transform; {hinted.hint}"
    return hinted


_FIRST = 10
"""Number of documents without --limit, --from and --fixture."""


_CONTINUED = "\n" + " " * 13
"""Beginning of the second and later lines of a text."""


@click.command()
@catalog_options
@click.option("--task", "tasks", multiple=True, required=True, metavar="NAME", help="The derivation (repeatable).")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="The first N documents.  [default: 10; all with --diff]"
)
@click.option(
    "--from",
    "begin",
    metavar="TIME",
    help="Documents published at or after this time: RFC 3339, or a duration before now (1h).",
)
@click.option(
    "--fixture",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Documents of a file: JSON Lines, or YAML or JSON with a list of documents, as in tests.",
)
@click.option("--collection", metavar="NAME", help="With --fixture, the collection of the documents.")
@click.option("--show-state", "has_state", is_flag=True, help="Show the state that each document changed.")
@click.option("--diff", "compares", is_flag=True, help="Show only how the results differ from the stored ones.")
@output_option
@quiet_option
@limit_options
def command(
    source: Path,
    data: Path | None,
    tasks: tuple[str, ...],
    limit: int | None,
    begin: str | None,
    fixture: Path | None,
    collection: str | None,
    output: str | None,
    *,
    has_state: bool,
    compares: bool,
    lambda_limits: LambdaLimits,
) -> None:
    """Run derivations over some documents, show the effects of each document, and commit nothing.

    The documents are the first documents of the real sources, the documents from a time on, or a fixture. The
    derivations run in a temporary folder, from an empty state. With --from, they process earlier documents first, which
    are not shown. Several derivations run together, also with the other derivations of their cycles.

    With --diff, the results are compared with the stored collection; this shows the effect of an edited catalog. With
    --limit, the comparison is at the end of the tick of the last document. The exit code is 0 even if there are
    differences.

    \b
    Examples:
      flowctl preview --task shop/spending
      flowctl preview --task shop/shipments --limit 3 --show-state
      flowctl preview --task shop/spending \\
        --from 2026-02-01T00:00:00Z -o json | jq .published
      flowctl preview --task shop/spending --diff
      flowctl preview --task shop/shipments --fixture orders.yaml \\
        --collection shop/orders
    """
    from derive.catalog.build import require_sound
    from derive.cli.console import note
    from derive.errors import UsageError
    from derive.preview.run import Options, preview, read_fixture, sources_of, with_cycles

    _check_options(limit, begin, fixture, collection, has_state=has_state, compares=compares)
    catalog = limited_catalog(source, lambda_limits, with_tests=False)
    for task in tasks:
        if catalog.find_task(task).name not in catalog.derivations:
            raise UsageError(f"'{task}' is a materialization: preview the derivations that it stores")
        if catalog.derivations[task].disabled:
            raise UsageError(f"'{task}' is disabled, so it has no effects", hint="remove 'disable' of its 'shards'")
    require_sound(catalog)
    chosen = with_cycles(catalog, tasks)
    given = None if fixture is None else read_fixture(fixture, sources_of(catalog, chosen), collection)
    clock = clock_of("--from", begin)
    is_open = clock is not None or fixture is not None or compares
    most = _FIRST if limit is None and not is_open else limit
    as_json = (output or ("table" if sys.stdout.isatty() else "json")) == "json"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the folder is removed, as at Ctrl-C
    with closing(open_store(stored_folder(source, data), reading=True)) as store:
        if given is None:
            _note_compaction(store, [catalog.collections[name] for name in sources_of(catalog, chosen)])
        options = Options(clock, most, given, has_state, compares)
        printer = _Printer(as_json=as_json)
        differing = preview(store, catalog, chosen, options, printer.print)
    if compares:
        _print_differences(differing, as_json=as_json)
    elif not printer.count:
        note("no document was processed")


def _note_compaction(store: Readable, sources: Sequence[CollectionSpec]) -> None:
    """Print a note for each source whose documents differ from the documents that a run has read."""
    from derive.cli.console import note
    from derive.contents.reads import compacted_before
    from derive.document.clock import format_rfc3339

    for spec in sources:
        if (since := compacted_before(store, spec)) is not None:
            note(
                f"the history of '{spec.name}' before {format_rfc3339(since)} is compacted to one document per key, so"
                " results may differ from the results of a run that read all documents",
                level="warn",
            )


def _check_options(
    limit: int | None,
    begin: str | None,
    fixture: Path | None,
    collection: str | None,
    *,
    has_state: bool,
    compares: bool,
) -> None:
    """Refuse options that make no sense together."""
    from derive.errors import UsageError

    if fixture is not None and (limit is not None or begin is not None):
        other = "--limit" if limit is not None else "--from"
        raise UsageError(f"all documents of a fixture are processed, so --fixture cannot be combined with {other}")
    if fixture is not None and compares:
        raise UsageError("--fixture cannot be combined with --diff: the stored results follow from stored documents")
    if compares and (has_state or begin is not None):
        other = "--show-state" if has_state else "--from"
        raise UsageError(f"--diff shows no single documents, so it cannot be combined with {other}")
    if collection is not None and fixture is None:
        raise UsageError("--collection needs --fixture")


class _Printer:
    """Prints effects.

    Args:
        as_json: whether as JSON.

    Attributes:
        count: number of printed effects.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._print = _print_json if as_json else _print_text
        self.count = 0

    def print(self, effect: Effect) -> None:
        """Print an effect."""
        self._print(effect)
        self.count += 1


def _print_json(effect: Effect) -> None:
    from derive.document.clock import format_rfc3339
    from derive.document.exact import dump_exact

    row: dict[str, JSON] = {
        "task": effect.task,
        "transform": effect.transform,
        "source": effect.source,
        "published_at": format_rfc3339(effect.published_at),
        "at": format_rfc3339(effect.at),
        "document": effect.document,
        "published": list(effect.published),
    }
    if effect.changes:
        row["state"] = [
            {"table": change.table, **({"at": change.pointer} if change.pointer else {}), **_sides(change)}
            for change in effect.changes
        ]
    if effect.messages:
        row["log"] = [{"level": level, "message": message} for level, message in effect.messages]
    click.echo(dump_exact(row))


def _sides(change: Change) -> dict[str, JSON]:
    """Return the old and the new value, without a missing one."""
    from derive.document.pointer import MISSING

    return {name: value for name, value in (("old", change.old), ("new", change.new)) if value is not MISSING}


def _print_text(effect: Effect) -> None:
    from derive.document.clock import format_rfc3339

    name = "the end of the tick" if effect.transform is None else f"'{effect.transform}' reads {effect.source}"
    heading = fitted(visible_line(f"{effect.task} · {name} at {format_rfc3339(effect.at)}"))
    click.echo(click.style(heading, bold="NO_COLOR" not in os.environ))
    for label, text in _lines(effect):
        click.echo(fitted(f"  {label:<9}  " + visible(text).replace("\n", _CONTINUED)))


def _lines(effect: Effect) -> Iterator[tuple[str, str]]:
    if effect.transform is not None:
        yield "document", _shown(effect.document)
    yield from effect.messages
    for document in effect.published:
        yield "published", _shown(document)
    for change in effect.changes:
        place = visible_line(f"{change.table}{change.pointer}")
        yield "state", f"{place}  {_shown(change.old)} → {_shown(change.new)}"


def _shown(value: Any) -> str:
    from derive.document.exact import dump_exact
    from derive.document.pointer import MISSING

    return "nothing" if value is MISSING else dump_exact(value).decode()


def _print_differences(differing: Sequence[KeyDifference], *, as_json: bool) -> None:
    """Print the differences, and their number on standard error."""
    from derive.cli.console import note
    from derive.document.exact import dump_exact
    from derive.document.pointer import MISSING

    for difference in differing:
        for place in difference.differences:
            sides = {"stored": place.expected, "preview": place.actual}
            if as_json:
                row = {"task": difference.task, "key": difference.key, "at": place.pointer}
                click.echo(
                    dump_exact({**row, **{side: value for side, value in sides.items() if value is not MISSING}})
                )
            else:
                text = f"{_shown(place.expected)} → {_shown(place.actual)}"
                line = visible_line(f"{difference.task} {difference.key}  {place.pointer}  {text}")
                click.echo(fitted(line))
    keys = counted(len(differing), "key") if differing else "no key"
    note(f"{keys} would differ")
