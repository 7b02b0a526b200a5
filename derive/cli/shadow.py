"""`flowctl shadow`, `flowctl diff` and `flowctl swap`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from derive.cli.options import catalog_options, clock_of, open_store, stored_folder


@click.group()
def command() -> None:
    """Give up a shadow that `flowctl run --shadow` derives."""


@command.command("drop")
@catalog_options
def drop_command(source: Path, data: Path | None) -> None:
    """Give up the shadow: remove its documents and its state. The live derivations stay as they are.

    A run that derives the shadow ends. After a swap there is no shadow to give up.

    \b
    Examples:
      flowctl shadow drop
    """
    from derive.cli.console import note
    from derive.engine.shadow import give_up
    from derive.errors import UsageError

    with closing(open_store(stored_folder(source, data))) as store:
        names = give_up(store)
        if not names:
            raise UsageError("there is no shadow", hint="begin one after an edit: flowctl run --shadow")
        note(f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} given up")


@click.command()
@catalog_options
@click.option("--collection", "names", multiple=True, metavar="NAME", help="Only this collection (repeatable).")
@click.option("--as-of", metavar="TIME", help="Compare at this RFC 3339 time.  [default: the latest final one of both]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N keys of each collection.")
def diff_command(source: Path, data: Path | None, names: tuple[str, ...], as_of: str | None, limit: int | None) -> None:
    """Show the keys whose documents a shadow will change, one JSON object per line.

    `before` is the document of the live collection, and `after` the document of the shadow; null if the key is missing
    there. A note for each collection gives the number of different keys.

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
        shadows = store.shadows.members()
        if not shadows:
            raise UsageError("there is no shadow", hint="begin one after an edit: flowctl run --shadow")
        collections = running_catalog(store, shadows, catalog).collections
        others = {shadow.task: shadow.name for shadow in shadows}
        for name in names or others:
            if name not in others:
                raise UsageError(f"'{name}' has no shadow", hint=f"shadows are derived of: {', '.join(others)}")
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
            what = f"{'at least ' if is_cut else ''}{count:,} key{'' if count == 1 else 's'}"
            note(f"{name}: {what} of the contents at {format_rfc3339(at)} will differ", collection=name, keys=count)


@click.command()
@catalog_options
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="NAME",
    help="Accept that this materialization cannot replace its rows at once (repeatable).",
)
def swap_command(source: Path, data: Path | None, accepted: tuple[str, ...]) -> None:
    """Let a shadow that `flowctl run --shadow --hold` derives replace the live derivations.

    If a run derives the shadow, the run swaps as soon as all derivations of the group are at one time. Otherwise this
    command swaps, if the shadow is complete.

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
    with closing(open_store(stored_folder(source, data))) as store:
        shadows = store.shadows.let_swap()
        if not shadows:
            raise UsageError("there is no shadow", hint="begin one after an edit: flowctl run --shadow")
        if store.task_capabilities.runs(name for shadow in shadows for name in (shadow.task, shadow.name)):
            note("the running flowctl swaps as soon as all derivations of the group are at one time")
            return
        group = find_group(store, catalog)
        if group is None:
            raise other_edit()
        at = swap_group(store, group, accepted)
        if at is None:
            meeting = store.shadows.meeting()
            behind = ", ".join(meeting.behind) if meeting else ""
            raise UsageError(
                f"the shadow cannot replace the live version yet: {behind or 'another catalog'} is behind",
                hint="continue it, and swap: flowctl run --shadow --until-idle",
            )
        note(f"{', '.join(group.members)}: the new version is in force from {format_rfc3339(at)} on")
