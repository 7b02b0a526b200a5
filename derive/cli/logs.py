"""`flowctl logs`."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.console import fitted, visible
from derive.cli.options import catalog_options, clock_of, optional_catalog, output_option, stored_folder

if TYPE_CHECKING:
    from derive.protocol.specs import CatalogSpec
    from derive.storage.task_log import Entry, LogReader


@click.command()
@catalog_options
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Only entries of this task (repeatable).")
@click.option(
    "--level",
    type=click.Choice(["debug", "info", "warn", "error"]),
    default="info",
    show_default=True,
    help="Lowest level to show.",
)
@click.option(
    "--since", metavar="TIME", help="Only entries at or after this time: RFC 3339, or a duration before now (1h)."
)
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N entries.")
@click.option("--follow", "-f", is_flag=True, help="Continue with new entries, until Ctrl-C.")
@output_option
def command(
    source: Path,
    data: Path | None,
    tasks: tuple[str, ...],
    level: str,
    since: str | None,
    tail: int | None,
    output: str | None,
    *,
    follow: bool,
) -> None:
    """Show the logs of tasks: transactions, errors, and output of lambdas (`console.log` in TypeScript).

    The task `sql-views` is the SQL server; its log reports compute instances. `NAME@N` is a shadow of task NAME.

    \b
    Examples:
      flowctl logs --task acmeBank/balances --follow
      flowctl logs --level error -o json
    """
    from derive.document.clock import format_rfc3339
    from derive.sql.maintenance.recording import LOG
    from derive.storage.task_log import LEVELS, LogChanges, LogReader

    catalog = optional_catalog(source, data)
    folder = stored_folder(source, data)
    known = [shown for name in (catalog.tasks if catalog else ()) for shown in (name, *_shadows(folder, name))]
    names = [_known(catalog, task) if catalog and task != LOG else task for task in tasks] or [*known, LOG]
    begin = clock_of("--since", since)
    earliest = "" if begin is None else format_rfc3339(begin)
    shown = LEVELS[LEVELS.index(level) :]
    as_json = (output or ("table" if sys.stdout.isatty() else "json")) == "json"
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(LogReader(folder, name))) for name in names]
        entries = _read(readers, shown, earliest)
        _show(entries[-tail:] if tail else [] if tail == 0 else entries, as_json=as_json)
        changes = LogChanges(folder, names)
        while follow:
            changes.begin()
            _show(_read(readers, shown, earliest), as_json=as_json)
            changes.wait()


def _shadows(folder: Path, task: str) -> list[str]:
    """Return the present and former shadows of a task that have a log."""
    from derive.protocol.collection import version_name
    from derive.storage.task_log import log_file

    log = log_file(folder, task)
    logs = log.parent.glob(f"{escape(log.name.removesuffix('.jsonl'))}[0-9]*@.jsonl")
    numbers = sorted(int(path.name.rsplit("@", 2)[1]) for path in logs)
    return [version_name(task, number) for number in numbers]


def _known(catalog: CatalogSpec, task: str) -> str:
    """Return the name of a task of a catalog, or of a shadow of one.

    Raises:
        UsageError: the catalog has no such task.
    """
    from derive.protocol.collection import owner_of_version

    catalog.find_task(owner_of_version(task) or task)
    return task


def _read(readers: list[LogReader], levels: tuple[str, ...], begin: str) -> list[Entry]:
    """Return the entries that have not been read yet, by time."""
    entries = [
        entry for reader in readers for entry in reader.read() if entry["level"] in levels and entry["at"] >= begin
    ]
    return sorted(entries, key=lambda entry: entry["at"])


def _short(value: Any) -> Any:
    """Return a value of an entry for people, who need no more than milliseconds."""
    return round(value, 3) if isinstance(value, float) else value


def _show(entries: list[Entry], *, as_json: bool) -> None:
    import orjson

    for entry in entries:
        if as_json:
            click.echo(orjson.dumps(entry))
        else:
            message = visible(entry["message"])
            fields = {name: value for name, value in entry.items() if name not in ("at", "level", "task", "message")}
            shown = visible(" ".join(f"{name}={_short(value)}" for name, value in fields.items()))
            at, level = f"{entry['at'][:23]}Z", f"{entry['level']:<5}"
            text = fitted(f"{at} {level} {entry['task']}  {message}{'  ' if shown else ''}{shown}")
            styled = click.style(level, fg={"warn": "yellow", "error": "red"}.get(entry["level"]))
            click.echo(text.replace(f"{at} {level}", f"{at} {styled}", 1))
    sys.stdout.flush()
