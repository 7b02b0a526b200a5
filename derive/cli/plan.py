"""`flowctl plan`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.console import visible_line
from derive.cli.options import catalog_options, open_store, output_option, stored_folder
from derive.cli.pasting import pasteable
from derive.plural import counted

if TYPE_CHECKING:
    from derive.document.pointer import JSON
    from derive.planning.differences import Change, TaskPlan
    from derive.protocol.specs import CatalogSpec
    from derive.storage.roles import Maintainable

_WIDTH = 80
_SHORT = 60
_CHANGED = 3
_EFFECTS = {
    "nothing": "no effect on documents",
    "new documents": "new documents only",
    "from the start": "from the start",
    "endpoint": "at the endpoint",
    "waits": "WAITS",
    "refused": "REFUSED",
}
_COLORS = {"added": "32", "removed": "31", "changed": "33", "waits": "1;33", "refused": "1;31"}


@click.command()
@catalog_options
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Plan only this task (repeatable).")
@click.option("--exit-code", is_flag=True, help="Exit with 3 if anything differs.")
@output_option
def command(source: Path, data: Path | None, tasks: tuple[str, ...], output: str | None, *, exit_code: bool) -> None:
    """Show the differences between the catalog and what this data folder ran, and the effect of the next run.

    Nothing is changed, and a run may be at work.

    \b
    effect                  meaning
    no effect on documents  nothing is read again, and no document changes
    new documents only      old documents stay, so old and new results are mixed
    from the start          a source is read from its start
    at the endpoint         columns of a materialization change
    WAITS                   the run leaves this task out until you accept the
                            edit or undo it
    REFUSED                 the task stops with an error until the edit is
                            undone or the task is reset

    Numbers of documents are those that are stored now. Durations are guesses from the rate of the task's last
    transactions. Connectors of materializations are asked about columns. Changes of passwords that are written in clear
    are not shown.

    With -o json, each task is one object per line: task, status, former, changes (part, effect, meaning, before, after,
    diff, documents, seconds, hint), notes, documents and seconds (of starting over), and commands.

    \b
    Exit codes: 0, also if a task waits or is refused; 3 with --exit-code if a
    task is not unchanged or disabled; 1 after an error, 2 if the command line
    is wrong.

    \b
    Examples:
      flowctl plan
      flowctl plan --task shop/large -o json
      flowctl plan --exit-code && flowctl run
    """
    from derive.catalog import load_without_tests
    from derive.catalog.build import require_sound
    from derive.cli.console import print_warning
    from derive.document.exact import dump_exact
    from derive.planning.plan import plan_tasks
    from derive.storage.metadata.opening import is_data_folder

    catalog = load_without_tests(source)
    folder = stored_folder(source, data)
    with ExitStack() as stack:
        store: Maintainable | None = None
        if is_data_folder(folder):
            store = stack.enter_context(closing(open_store(folder, reading=True)))
        _require(catalog, store, tasks)
        for issue in require_sound(catalog, tasks or None):
            print_warning(issue)
        plans = plan_tasks(store, catalog, tasks)
        plans = _with_endpoints(catalog, store, plans)
    if (output or ("table" if sys.stdout.isatty() else "json")) == "json":
        for plan in plans:
            sys.stdout.write(dump_exact(_describe(plan)).decode() + "\n")
    else:
        paint = _paint if sys.stdout.isatty() and "NO_COLOR" not in os.environ else _plain
        sys.stdout.write("".join(f"{line}\n" for plan in plans for line in _lines(plan, paint)))
        sys.stdout.write(f"{_summary(plans)}\n")
    if exit_code and any(plan.status not in ("unchanged", "disabled") for plan in plans):
        raise click.exceptions.Exit(_CHANGED)


def _require(catalog: CatalogSpec, store: Maintainable | None, names: Sequence[str]) -> None:
    """Raise an error if the catalog and the data folder have no task with a name, or a shadow has the name."""
    from derive.protocol.collection import owner_of_version

    for name in names:
        if store is None or store.task(name) is None or owner_of_version(name):
            catalog.find_task(name)


def _with_endpoints(catalog: CatalogSpec, store: Maintainable | None, plans: list[TaskPlan]) -> list[TaskPlan]:
    """Return the plans, with changes at the endpoints of materializations."""
    specs = catalog.materializations
    if not any(plan.name in specs and plan.status != "disabled" for plan in plans):
        return plans
    from derive.materialize.connector import Connectors
    from derive.materialize.restarts import ResetMarker, last_reset
    from derive.planning.differences import endpoint_changes
    from derive.planning.plan import with_endpoint

    planned = []
    with Connectors() as connectors:
        for plan in plans:
            spec = specs.get(plan.name)
            if spec is None or plan.status == "disabled":
                planned.append(plan)
                continue
            state = store.task(plan.name) if store else None
            restart = last_reset(store, plan.name) if store else ResetMarker()
            planned.append(with_endpoint(plan, *endpoint_changes(restart, spec, connectors, state)))
    return planned


def _describe(plan: TaskPlan) -> dict[str, Any]:
    return {
        "task": plan.name,
        "status": plan.status,
        "former": plan.former,
        "changes": [
            {
                "part": change.part,
                "effect": change.effect,
                "meaning": change.meaning,
                "before": change.before,
                "after": change.after,
                "diff": list(change.diff),
                "documents": change.documents,
                "seconds": plan.seconds(change.documents),
                "hint": pasteable(change.hint) or None,
            }
            for change in plan.changes
        ],
        "notes": list(plan.notes),
        "documents": plan.documents,
        "seconds": plan.seconds(plan.documents),
        "commands": [{"command": pasteable(command), "purpose": purpose} for command, purpose in plan.commands],
    }


def _plain(text: str, _: str) -> str:
    return text


def _paint(text: str, color: str) -> str:
    return f"\x1b[{color}m{text}\x1b[0m" if color else text


def _lines(plan: TaskPlan, paint: Callable[[str, str], str]) -> Iterator[str]:
    from derive.cli.folding import cells, folded_command

    name = visible_line(plan.name)
    between = "\n  " if cells(f"{name}: {plan.status}") > _WIDTH else " "
    yield f"{paint(name, '1')}:{between}{paint(plan.status, _COLORS.get(plan.status, ''))}"
    for change in plan.changes:
        yield from _change_lines(plan, change, paint)
    for text in plan.notes:
        yield from _wrapped(text, "  note: ", "    ")
    for command, purpose in plan.commands:
        cost = _cost(plan, plan.documents) if purpose == "to start over" else ""
        yield f"  {purpose}{cost}:"
        yield from folded_command(pasteable(command), _WIDTH, "    ")


def _change_lines(plan: TaskPlan, change: Change, paint: Callable[[str, str], str]) -> Iterator[str]:
    values = _values(change)
    yield from _wrapped(f"{change.part}{values}", "  ", "    ")
    if change.diff:
        for line in change.diff:
            yield from _painted(line, {"-": "31", "+": "32"}.get(line[:1], ""), paint)
    elif not values:
        yield from _long_values(change, paint)
    effect = f"    {_EFFECTS[change.effect]}: "
    cost = _cost(plan, change.documents)
    first, *others = _wrapped(f"{change.meaning}{cost}", effect, "      ")
    yield first.replace(_EFFECTS[change.effect], paint(_EFFECTS[change.effect], _COLORS.get(change.effect, "")), 1)
    yield from others
    for way in change.hint.split("; ") if change.hint else ():
        yield from _wrapped(pasteable(way), "      - ", "        ")


def _values(change: Change) -> str:
    """Return both values of a change for its first line; empty if they are too long."""
    before, after = _text(change.before), _text(change.after)
    if change.diff or (change.before is None and change.after is None) or len(before) + len(after) > _SHORT:
        return ""
    if change.before is None:
        return f": {after}"
    return f": {before} -> {after}" if change.after is not None else f": {before} -> nothing"


def _long_values(change: Change, paint: Callable[[str, str], str]) -> Iterator[str]:
    for sign, value, color in (("-", change.before, "31"), ("+", change.after, "32")):
        if value is not None:
            yield from _painted(f"{sign}{_text(value)}", color, paint)


def _painted(line: str, color: str, paint: Callable[[str, str], str]) -> Iterator[str]:
    """Yield the lines of a line of a difference, which fit a terminal."""
    for part in _wrapped(line, "      ", "        "):
        blank = len(part) - len(part.lstrip(" "))
        yield part[:blank] + paint(part[blank:], color)


def _text(value: JSON) -> str:
    from derive.document.exact import dump_exact

    return visible_line(value if isinstance(value, str) else dump_exact(value).decode())


def _cost(plan: TaskPlan, documents: int | None) -> str:
    """Return a number of documents, and the duration of reading them, in parentheses; empty if unknown."""
    if documents is None:
        return ""
    seconds = plan.seconds(documents)
    count = counted(documents, "document")
    return f" ({count})" if seconds is None else f" ({count}, about {_duration(seconds)}, a guess)"


def _duration(seconds: float) -> str:
    from derive.document.clock import format_duration

    rounded = max(1, round(seconds))
    grain = 1 if rounded < 60 else 60 if rounded < 3600 else 600
    return format_duration(round(rounded / grain) * grain * 1_000_000)


def _wrapped(text: str, first: str, indent: str) -> list[str]:
    from derive.cli.folding import folded

    return folded(visible_line(text), _WIDTH, first, indent)


def _summary(plans: Sequence[TaskPlan]) -> str:
    from collections import Counter

    counts = Counter(plan.status for plan in plans)
    return f"{counted(len(plans), 'task')}: " + (
        ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing to run"
    )
