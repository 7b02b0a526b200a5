"""`flowctl swap`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from derive.cli.options import catalog_options, open_store, stored_folder


@click.command()
@catalog_options
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="NAME",
    help="Accept that this materialization cannot replace its rows at once (repeatable).",
)
def command(source: Path, data: Path | None, accepted: tuple[str, ...]) -> None:
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
