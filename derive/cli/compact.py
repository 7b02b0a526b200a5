"""`flowctl compact`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.options import catalog_options, open_store, output_option, quiet_option, stored_folder, wide_option

if TYPE_CHECKING:
    from derive.cli.console import Progress
    from derive.protocol.specs import CatalogSpec, CollectionSpec
    from derive.storage.compaction import Compaction, Forecast
    from derive.storage.roles import Maintainable


@click.command()
@catalog_options
@output_option
@click.option("--collection", "names", multiple=True, metavar="NAME", help="Only this collection (repeatable).")
@wide_option
@click.option(
    "--since",
    metavar="TIME",
    help="Reduce the history before this time (RFC 3339, or a duration before now) to one document per key.",
)
@click.option(
    "--grace", default="10m", show_default=True, metavar="DURATION", help="Time for which replaced files are kept."
)
@click.option("--dry-run", is_flag=True, help="Show the planned work, and do nothing.")
@quiet_option
def command(
    source: Path,
    data: Path | None,
    output: str | None,
    names: tuple[str, ...],
    since: str | None,
    grace: str,
    *,
    wide: bool,
    dry_run: bool,
) -> None:
    """Merge small files into larger ones, which are faster to read, and delete history with --since.

    Without --since, the contents of collections stay the same at every time. With --since, contents before that time
    are lost; a reduced read at or after that time returns the same documents as before. History that a derivation has
    not read yet, or that a process reads now, is kept. Compaction cannot be undone.

    Other processes may read and write meanwhile: replaced files are kept for --grace, for readers that have opened
    them. A continuous `flowctl run` also merges files from time to time, but deletes no history.

    \b
    Examples:
      flowctl compact
      flowctl compact --collection acmeBank/transfers --grace 0s
      flowctl compact --since 2026-01-01T00:00:00Z --dry-run
      flowctl compact --since 30d
    """
    from derive.catalog import load_without_tests
    from derive.cli.options import clock_of
    from derive.document.clock import parse_duration
    from derive.errors import UsageError

    try:
        kept = parse_duration(grace)
    except ValueError as exc:
        raise UsageError(f"--grace: {exc}") from exc
    bound = clock_of("--since", since)
    catalog = load_without_tests(source)
    with closing(open_store(stored_folder(source, data), reading=dry_run)) as store:
        known = {table.name: table.spec for table in store.tables.all()}
        chosen = [known.get(name) or catalog.find_collection(name) for name in names]
        collections = chosen or list({**catalog.collections, **known}.values())
        if bound is not None and bound > store.timeline.wall():
            raise UsageError(f"--since {since} is in the future", hint="give a past time")
        if dry_run:
            _show_forecast(_forecast(catalog, collections, store, bound), output, wide=wide)
        else:
            _show(_compact(catalog, collections, store, bound, kept), output, wide=wide)


def _forecast(
    catalog: CatalogSpec, collections: Sequence[CollectionSpec], store: Maintainable, since: int | None
) -> list[Forecast]:
    from derive.cli.console import note
    from derive.engine.inputs import gone
    from derive.storage.compaction import forecast

    absent = gone(catalog, store) if since is not None else []
    for name in absent:
        note(f"{name} is no longer in the catalog: its read capabilities would be released")
    return [entry for spec in collections if (entry := forecast(store, spec, since=since, gone=absent))]


def _show_forecast(forecasts: Sequence[Forecast], output: str | None, *, wide: bool) -> None:
    from derive.cli.console import print_rows
    from derive.document.clock import format_rfc3339

    _report_held(forecasts)
    rows = [
        {
            "collection": forecast.collection,
            "segments": forecast.segments,
            "to rewrite": forecast.rewritten,
            "documents": forecast.documents,
            "to reduce": forecast.reduced,
            "since": format_rfc3339(forecast.since),
        }
        for forecast in forecasts
    ]
    columns = ("segments", "to rewrite", "documents", "to reduce", "since")
    print_rows(["collection", *columns], rows, output, wide=wide, spare=("since", "segments", "documents"))


def _compact(
    catalog: CatalogSpec, collections: Sequence[CollectionSpec], store: Maintainable, since: int | None, grace: int
) -> list[Compaction]:
    from derive.cli.console import Progress, note
    from derive.engine.inputs import settle
    from derive.storage.compaction import compact

    if since is not None:
        for name in settle(catalog, store):
            note(f"{name} is no longer in the catalog: its read capabilities were released")
    stored = [spec for spec in collections if store.collection(spec.name) is not None]
    compactions = []
    with Progress() as progress:
        for number, spec in enumerate(stored, start=1):
            show = partial(_show_step, progress, f"{number} of {len(stored)}: {spec.name}")
            done = compact(store, spec, since=since, grace=grace, progress=show)
            compactions += [done] if done else []
    return compactions


def _show_step(progress: Progress, what: str, step: str, done: int, total: int) -> None:
    """Show the progress of a step of a compaction, until the step is finished."""
    if done < total:
        progress.show(f"{step} {what}", done, total)
    else:
        progress.stop(f"{step} {what}")


def _show(compactions: Sequence[Compaction], output: str | None, *, wide: bool) -> None:
    from derive.cli.console import print_rows
    from derive.document.clock import format_rfc3339

    _report_held(compactions)
    rows = [
        {
            "collection": compaction.collection,
            "segments before": compaction.before,
            "segments after": compaction.after,
            "documents before": compaction.documents_before,
            "documents after": compaction.documents_after,
            "since": format_rfc3339(compaction.since),
        }
        for compaction in compactions
    ]
    columns = ("segments before", "segments after", "documents before", "documents after", "since")
    spare = ("since", "documents before", "segments before", "segments after")
    print_rows(["collection", *columns], rows, output, wide=wide, spare=spare)


def _report_held(outcomes: Sequence[Compaction | Forecast]) -> None:
    """Report the tasks and processes that still need the history of a collection."""
    from derive.cli.console import note
    from derive.document.clock import format_rfc3339

    for outcome in outcomes:
        for hold in outcome.held_by:
            who = f"'{hold.task}' has not processed it yet" if hold.task else f"process {hold.holder} is reading it"
            note(f"{outcome.collection}: history from {format_rfc3339(outcome.since)} on is kept, because {who}")
