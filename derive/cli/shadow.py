"""`flowctl shadow`, `flowctl diff` and `flowctl swap`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import catalog_options, clock_of, open_store, quiet_option, stored_folder
from derive.plural import counted

if TYPE_CHECKING:
    from derive.protocol.specs import CatalogSpec
    from derive.storage.metadata.swap import BindingShadow
    from derive.storage.store import Store

_EXAMPLES = 20
"""Default number of example rows of a table."""


@click.group()
def command() -> None:
    """Drop a shadow that `flowctl run --shadow` derives.

    \b
    Examples:
      flowctl shadow drop
    """


@command.command("drop")
@catalog_options
@quiet_option
def drop_command(source: Path, data: Path | None) -> None:
    """Drop the shadow: remove its documents and its state, or its table. The live version stays as it is.

    A run that derives the shadow ends. After a swap there is no shadow to drop.

    \b
    Examples:
      flowctl shadow drop
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import note
    from derive.engine.shadow import drop_shadows
    from derive.errors import UsageError

    with closing(open_store(stored_folder(source, data))) as store:
        names, bindings = drop_shadows(store), store.shadows.bindings()
        if not names and not bindings:
            raise UsageError("there is no shadow", hint="begin one after an edit: flowctl run --shadow")
        if names:
            note(f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} dropped")
        if bindings:
            from derive.engine.shadow import drop_binding_shadows  # imports gRPC

            catalog = load_without_tests(source)
            for shadow in bindings:
                drop_binding_shadows(store, catalog, [shadow])
                tables = ", ".join(f"'{key}'" for key in shadow.keys.values())
                note(f"{shadow.task}: the second table of {tables} was dropped", task=shadow.task)


@click.command()
@catalog_options
@click.option("--collection", "names", multiple=True, metavar="NAME", help="Only this collection (repeatable).")
@click.option(
    "--as-of",
    metavar="TIME",
    help="Compare at this time: RFC 3339, or a duration before now (1h).  [default: the latest final one of both]",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N keys of each collection.")
@quiet_option
def diff_command(source: Path, data: Path | None, names: tuple[str, ...], as_of: str | None, limit: int | None) -> None:
    """Show the keys whose documents a shadow will change, one JSON object per line.

    `before` is the document of the live collection, and `after` the document of the shadow; null if the key is missing
    there. A note for each collection gives the number of different keys. For a shadow of a binding, `before` and
    `after` have the columns of the row that differ, for at most 20 rows of a table unless --limit is another number.

    \b
    Examples:
      flowctl diff
      flowctl diff --collection acmeBank/balances --limit 10
      flowctl diff | jq 'select(.after == null).key'
    """
    from itertools import islice

    from derive.catalog import load_without_tests
    from derive.cli.console import note, visible
    from derive.contents.reduced import differing_documents
    from derive.document.clock import format_rfc3339
    from derive.document.exact import dump_exact
    from derive.document.key import unpack
    from derive.engine.shadow import running_catalog
    from derive.errors import UsageError

    catalog, asked = load_without_tests(source), clock_of("--as-of", as_of)
    with closing(open_store(stored_folder(source, data), reading=True)) as store:
        shadows, bindings = store.shadows.members(), store.shadows.bindings()
        if bindings:
            _show_tables(store, catalog, bindings, names, limit or _EXAMPLES)
            return
        if not shadows:
            raise UsageError("there is no shadow", hint="begin one after an edit: flowctl run --shadow")
        collections = running_catalog(store, shadows, catalog).collections
        others = {shadow.task: shadow.name for shadow in shadows}
        for name in names or others:
            if name not in others:
                raise UsageError(f"'{name}' has no shadow", hint=f"these have shadows: {', '.join(others)}")
            at = min(store.upper(name), store.upper(others[name])) - 1 if asked is None else asked
            if at < 0:
                note(f"{name}: nothing is derived yet")
                continue
            count = 0
            with closing(differing_documents(store, collections[name], collections[others[name]], at)) as differences:
                for difference in islice(differences, limit):
                    count += 1
                    row: dict[str, Any] = {"collection": name, "key": list(unpack(difference.key))}
                    row |= {"before": difference.before, "after": difference.after}
                    click.echo(visible(dump_exact(row).decode()))
            is_cut = limit is not None and count == limit
            what = f"{'at least ' if is_cut else ''}{counted(count, 'key')}"
            note(f"{name}: {what} of the contents at {format_rfc3339(at)} will differ", collection=name, keys=count)


def _show_tables(
    store: Store, catalog: CatalogSpec, shadows: Sequence[BindingShadow], names: Sequence[str], limit: int
) -> None:
    """Show the rows that shadows of bindings will change.

    Args:
        store: the data folder.
        catalog: the catalog, without shadows.
        shadows: the shadows.
        names: names of the collections to show; empty for all.
        limit: largest number of example rows of a table.
    """
    from derive.cli.console import note, visible
    from derive.document.exact import dump_exact, parse_exact
    from derive.engine.shadow import prepare_shadow, with_shadows

    running = with_shadows(catalog, shadows)
    for shadow in shadows:
        prepared, connector = prepare_shadow(store, running, shadow.task)
        differences = prepared.apply(connector, dry_run=True, compare=limit).differences
        if not differences:
            note(f"{shadow.task}: {connector.name} cannot compare the rows", task=shadow.task)
        for one in differences:
            binding = prepared.bindings[one.binding]
            collection, table = binding.spec.collection.name, ".".join(binding.resource_path)
            if names and collection not in names:
                continue
            for row in one.rows:
                shown: dict[str, Any] = {"task": shadow.task, "collection": collection, "table": table}
                click.echo(visible(dump_exact({**shown, **parse_exact(row.encode())}).decode()))
            counts = {"inserted": one.inserted, "updated": one.updated, "deleted": one.deleted}
            what = ", ".join(f"{count:,} {name}" for name, count in counts.items())
            note(f"{shadow.task}: rows of '{table}' that the swap changes: {what}", task=shadow.task, counts=counts)


@click.command()
@catalog_options
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="NAME",
    help="Accept that this materialization cannot replace its rows at once (repeatable).",
)
@quiet_option
def swap_command(source: Path, data: Path | None, accepted: tuple[str, ...]) -> None:
    """Let a shadow that `flowctl run --shadow --hold` derives replace the live derivations, or the rows of a table.

    If a run derives the shadow, the run swaps as soon as all derivations of the group are at one time. Otherwise this
    command swaps, if the shadow is complete. A shadow of a binding swaps as soon as it has reached the live rows.

    \b
    Examples:
      flowctl diff
      flowctl swap
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import note
    from derive.document.clock import format_rfc3339
    from derive.engine.shadow import find_group
    from derive.engine.swapping import swap_group
    from derive.errors import UsageError
    from derive.storage.shadows import other_edit

    catalog = load_without_tests(source)
    for name in accepted:
        catalog.find_task(name)
    with closing(open_store(stored_folder(source, data))) as store:
        if bindings := store.shadows.bindings():
            from derive.engine.shadow import with_shadows  # imports gRPC

            with_shadows(catalog, bindings)  # refuses another edit, before the shadows may swap
        shadows = store.shadows.let_swap()
        if not shadows and not bindings:
            raise UsageError("there is no shadow", hint="begin one after an edit: flowctl run --shadow")
        if bindings:
            _swap_bindings(store, catalog, bindings)
            return
        if store.task_capabilities.runs(name for shadow in shadows for name in (shadow.task, shadow.name)):
            note("the running flowctl swaps as soon as all derivations of the group are at one time")
            return
        group = find_group(store, catalog)
        if group is None:
            raise other_edit()
        at = swap_group(store, group, accepted)
        if at is None:
            meeting = store.shadows.meeting()
            reason = "another process has changed the shadow"
            if meeting and meeting.behind:
                reason = f"the time of the swap is not reached by: {', '.join(meeting.behind)}"
            raise UsageError(
                f"the shadow cannot replace the live version yet: {reason}",
                hint="continue it, and swap: flowctl run --shadow --until-idle",
            )
        note(f"{', '.join(group.members)}: the new version is in force from {format_rfc3339(at)} on")


def _swap_bindings(store: Store, catalog: CatalogSpec, bindings: Sequence[BindingShadow]) -> None:
    """Let shadows of bindings replace the rows of their tables.

    Raises:
        UsageError: a shadow is not ready.
        FlowError: an endpoint fails.
    """
    from derive.cli.console import note
    from derive.engine.swapping import swap_alone
    from derive.errors import UsageError

    for shadow in bindings:
        if store.task_capabilities.runs([shadow.task]):
            note(f"{shadow.task}: the running flowctl swaps as soon as the shadow has reached the live rows")
            continue
        if not swap_alone(store, catalog, shadow):
            reason = f"it has stopped: {shadow.error}" if shadow.error else "it is behind the live rows"
            raise UsageError(
                f"the shadow of '{shadow.task}' cannot replace the live rows yet: {reason}",
                hint="continue it, and swap: flowctl run --shadow --until-idle",
            )
        note(f"{shadow.task}: the rows of the second table have replaced the former rows", task=shadow.task)
