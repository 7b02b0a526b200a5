"""`flowctl state`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import (
    catalog_options,
    catalog_with_shadows,
    open_store,
    output_option,
    stored_folder,
    wide_option,
)

if TYPE_CHECKING:
    from derive.document.pointer import JSON
    from derive.shard.inspection import StateQuery

_MOST_ROWS = 10_000
"""Maximum number of rows of a table on a terminal, which holds all of them in memory."""

_LISTED = ("table", "shards", "rows", "columns")


@click.command()
@catalog_options
@click.option("--task", required=True, metavar="NAME", help="The derivation; NAME@N is a shadow.")
@click.option("--key", metavar="JSON", help="Only the shard that owns this shuffle key: a JSON array of its values.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of the query.",
)
@click.option(
    "--memory",
    type=click.IntRange(16, 1_048_576),
    default=1024,
    show_default=True,
    metavar="MB",
    help="Memory limit of the query.",
)
@output_option
@wide_option
@click.argument("sql", required=False, metavar="[SQL]")
def command(
    source: Path,
    data: Path | None,
    task: str,
    key: str | None,
    timeout: float,
    memory: int,
    output: str | None,
    sql: str | None,
    *,
    wide: bool,
) -> None:
    """Query the state of a derivation, as it is at the last commit. The derivation may be running.

    SQL is a SELECT in the dialect of SQLite. Each table has the rows of all shards; its first column flow_shard is the
    number of the shard. Without SQL, the tables are listed. The state of a TypeScript module is the table "state". It
    has a row for each property, or for each key of a property that is an object, with the value as JSON. With --key and
    without SQL, the rows of this key are printed.

    The databases are copied into a temporary folder, and the query runs on the copies.

    \b
    Examples:
      flowctl state --task shop/shipments
      flowctl state --task shop/shipments \\
        'SELECT * FROM stock ORDER BY count DESC LIMIT 10'
      flowctl state --task shop/shipments --key '["tea"]' \\
        "SELECT * FROM stock WHERE item = 'tea'"
      flowctl state --task shop/totals --key '["ann"]'
      flowctl state --task shop/totals \\
        "SELECT key, value FROM state WHERE field = 'totals'"
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import note, print_rows
    from derive.cli.keys import key_values
    from derive.document.exact import dump_exact
    from derive.errors import UsageError
    from derive.shard.inspection import StateQuery, copied_states, shard_of_key, state_of

    catalog = load_without_tests(source)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the copies are removed, as at Ctrl-C
    folder = stored_folder(source, data)
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(folder, reading=True)))
        catalog = catalog_with_shadows(store, catalog, [task])
        if catalog.find_task(task).name not in catalog.derivations:
            raise UsageError(
                f"'{task}' is a materialization: its state is in its endpoint", hint="query the tables of the endpoint"
            )
        spec = catalog.derivations[task]
        shard = None if key is None else shard_of_key(spec, key_values(key), state_of(store, task).shards)
        copies = stack.enter_context(copied_states(store, store.root, task, shard))
        query = stack.enter_context(closing(StateQuery(spec, copies, timeout, memory)))
        if sql is not None:
            _print(query.rows(sql), output, wide=wide)
        elif key is not None and query.keyed is not None:
            values = key_values(key)
            value: JSON = values[0] if len(values) == 1 else values
            text = value if isinstance(value, str) else dump_exact(value).decode()
            _print(query.rows(f"SELECT * FROM {query.keyed} WHERE key = ?", (text,)), output, wide=wide)
        else:
            print_rows(_LISTED, list(_tables(query)), output, wide=wide)
            if not query.tables:
                note(f"'{task}' has no tables: its lambdas keep no state, or no document was processed yet")


def _tables(query: StateQuery) -> Iterator[dict[str, Any]]:
    """Yield a description of each table."""
    for name, table in query.tables.items():
        quoted = '"' + name.replace('"', '""') + '"'
        [counted] = query.rows(f"SELECT count(*) AS rows FROM {quoted}")
        yield {
            "table": name,
            "shards": ", ".join(map(str, table.shards)),
            "rows": counted["rows"],
            "columns": ", ".join(table.columns),
        }


def _print(rows: Iterable[dict[str, JSON]], output: str | None, *, wide: bool) -> None:
    """Print rows: as JSON in the order of their arrival, or as a table of the first rows."""
    from derive.cli.console import note, print_rows
    from derive.document.exact import dump_exact

    if (output or ("table" if sys.stdout.isatty() else "json")) == "json":
        for row in rows:
            sys.stdout.write(dump_exact(row).decode() + "\n")
        return
    remaining = iter(rows)
    shown = list(islice(remaining, _MOST_ROWS))
    print_rows(tuple(shown[0]) if shown else (), shown, output, wide=wide)
    if next(remaining, None) is not None:
        note(f"these are the first {_MOST_ROWS:,} rows; -o json prints all rows")
