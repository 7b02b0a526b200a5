"""`flowctl sql`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import count as counted
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.console import visible_line
from derive.cli.options import (
    catalog_options,
    created_folder,
    optional_catalog,
    quiet_option,
    segments_option,
    settle_metadata,
    stored_folder,
)

if TYPE_CHECKING:
    from derive.algebra.types import Row
    from derive.cli.console import Progress
    from derive.contents.rows import ReadProgress
    from derive.sql.results import CopyOut, Result, ResultColumn
    from derive.sql.session import SqlSession


_WRITING = re.compile(
    r"\b(?:alter|comment|copy|create|delete|drop|grant|insert|into|merge|revoke|truncate|update)\b", re.IGNORECASE
)
"""Words of statements that write; scripts without them create no data folder."""

_SHOWN_SECONDS = 0.5
"""Interval between two looks at the time while a statement runs."""


class _SqlGroup(click.Group):
    """The group of `flowctl sql`, which runs statements, and of its subcommand `flowctl sql serve`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands."""
        return ["serve"] if find_spec("derive.cli.sql_serve") else []

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the subcommand with this name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        served: click.Command = import_module("derive.cli.sql_serve").command
        return served


@click.group(cls=_SqlGroup, invoke_without_command=True)
@click.option("-c", "--command", "texts", multiple=True, metavar="SQL", help="Statements to run; may be repeated.")
@click.option("-f", "--file", type=click.Path(path_type=Path, dir_okay=False), help="A file of statements to run.")
@catalog_options
@segments_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    help="Format of the output.  [default: table on a terminal, json otherwise]",
)
@click.option(
    "--max-result-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Fail if a result has more bytes.  [default: no limit]",
)
@quiet_option
@click.pass_context
def command(
    ctx: click.Context,
    texts: Sequence[str],
    file: Path | None,
    source: Path,
    data: Path | None,
    output: str | None,
    max_result_bytes: int | None,
) -> None:
    """Query collections with SQL, and create tables and views.

    Statements come from `-c`, from a file, or from standard input. Each statement is a transaction of its own, except
    between BEGIN and COMMIT. A query reads at the newest time at which all its sources are known, without waiting for
    tasks; after `SET transaction_isolation = 'strict serializable'` it reads at the present time.

    \b
    Examples:
      flowctl sql -c 'SELECT * FROM "acmeBank/balances" ORDER BY amount LIMIT 3'
      flowctl sql -c 'CREATE TABLE notes (account text, note text)'
      flowctl sql -f report.sql -o csv > report.csv
      flowctl sql serve
    """
    if ctx.invoked_subcommand is not None:
        return
    import asyncio

    from derive.errors import UsageError

    if texts and file:
        raise UsageError("statements come from -c or from a file, not from both")
    if not texts:
        if file is None and sys.stdin.isatty():
            raise UsageError(
                "there are no statements to run",
                hint="give some with -c 'SELECT …', or start 'flowctl sql serve' for a prompt of psql",
            )
        scripts = [_text_of(file)]
    else:
        scripts = [("-c", text) for text in texts]
    if any(text.lstrip().startswith("\\") for _, text in scripts):
        hint = "start 'flowctl sql serve', and then psql; here, SHOW OBJECTS lists relations"
        raise UsageError("commands with a backslash are commands of psql", hint=hint)
    asyncio.run(_run(scripts, source, data, output, max_result_bytes))


def _text_of(file: Path | None) -> tuple[str, str]:
    """Return the name and the text of a file, or of standard input.

    Raises:
        UsageError: there is no such file, the bytes cannot be read, or they are not UTF-8.
    """
    from derive.cli.inputs import no_file
    from derive.errors import UsageError

    name = str(file) if file else "standard input"
    try:
        data = file.read_bytes() if file else sys.stdin.buffer.read()
    except FileNotFoundError:
        raise no_file(name) from None
    except OSError as exc:
        raise UsageError(f"cannot read {name}: {exc.strerror}") from exc
    try:
        return name, data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        raise UsageError(f"{name} is not UTF-8 text: byte {exc.start + 1} is {data[exc.start]:#04x}") from exc


async def _run(
    scripts: Sequence[tuple[str, str]], source: Path, data: Path | None, output: str | None, most_bytes: int | None
) -> None:
    from derive.cli.console import Progress
    from derive.sql.client import opened_session

    catalog = optional_catalog(source, data)
    is_writing = any(_WRITING.search(text) for _, text in scripts)
    folder = settle_metadata((created_folder if is_writing else stored_folder)(source, data), creates=True)
    with Progress("statement") as progress:
        async with opened_session(folder, catalog, most_bytes) as session:
            for name, text in scripts:
                await _run_script(session, name, text, output, progress)


async def _run_script(session: SqlSession, name: str, text: str, output: str | None, progress: Progress) -> None:
    from derive.sql.client import located

    with located(name, text, 0):
        statements = session.split(text)
    for number, (begin, statement) in enumerate(statements):
        watch = _Watch(progress, name, number, len(statements), session.watch_reads())
        with located(name, text, begin), closing(watch):
            await _execute(session, statement, output, watch)
    progress.stop(name)


class _Watch:
    """Shows which statement of a script runs, and its progress, until the terminal shows rows.

    Args:
        progress: the lines on the terminal.
        name: name of the script.
        number: number of the statements before this one.
        total: number of statements in all.
        reads: progress of the statement's reads.

    Attributes:
        share: share of standard input that COPY has read; None for other statements.
    """

    def __init__(self, progress: Progress, name: str, number: int, total: int, reads: ReadProgress) -> None:
        import asyncio

        self._progress, self._name, self._number, self._total = progress, name, number, total
        self._reads = reads
        self.share: float | None = None
        self._showing = asyncio.create_task(self._show())

    async def _show(self) -> None:
        import asyncio

        while True:
            share = self._reads.share if self.share is None else self.share
            self._progress.show(self._name, self._number, self._total, share=share)
            await asyncio.sleep(_SHOWN_SECONDS)

    def make_room(self) -> None:
        """Show nothing more if rows are printed on the same terminal."""
        if sys.stdout.isatty():
            self.close()
            self._progress.pause()

    def close(self) -> None:
        """Show nothing more of this statement."""
        self._showing.cancel()


async def _execute(session: SqlSession, text: str, output: str | None, watch: _Watch) -> None:
    from derive.cli.console import note
    from derive.sql.client import executed

    async with executed(session, text) as result:
        for notice in result.notices:
            level = "warn" if notice.severity == "WARNING" else "info"
            note(f"{notice.severity}: {notice.message}", level=level)
            if notice.hint:
                note(f"HINT: {notice.hint}", level=level)
        count = await (result.copy_in(_standard_input(watch)) if result.copy_in else _print(result, output, watch))
    if result.columns is None or result.copy_in:
        note(result.tag(count))


async def _print(result: Result, output: str | None, watch: _Watch) -> int:
    """Print the rows of a result; return their number."""
    if result.columns is None or result.rows is None:
        return 0
    if result.copy_out is not None:
        return await _copy(result.copy_out, result.rows, watch)
    output_format = output or ("table" if sys.stdout.isatty() else "json")
    printed = _TablePrinter(result.columns) if output_format == "table" else _LinePrinter(result.columns, output_format)
    count = 0
    async for batch in result.rows:
        count += len(batch)
        if output_format != "table":
            watch.make_room()
        printed.add(batch)
        if result.is_prompt:
            sys.stdout.flush()
    watch.make_room()
    printed.end()
    return count


async def _copy(writer: CopyOut, batches: AsyncIterator[Sequence[Row]], watch: _Watch) -> int:
    """Print the lines of COPY … TO STDOUT; return the number of rows."""
    sys.stdout.flush()
    sys.stdout.buffer.write(writer.header or b"")
    count = 0
    async for batch in batches:
        count += len(batch)
        watch.make_room()
        sys.stdout.buffer.write(b"".join(writer.lines(batch)))
        sys.stdout.buffer.flush()
    sys.stdout.buffer.write(writer.end() if writer.end else b"")
    sys.stdout.buffer.flush()
    return count


async def _standard_input(watch: _Watch) -> AsyncIterator[bytes]:
    """Yield the bytes of standard input, for COPY … FROM STDIN.

    Raises:
        UsageError: the bytes cannot be read.
    """
    from derive.errors import UsageError

    try:
        size, count = os.fstat(sys.stdin.fileno()).st_size, 0
        while piece := sys.stdin.buffer.read(1 << 16):
            yield piece
            count += len(piece)
            watch.share = min(1.0, count / size) if size else None  # a pipe has no size
    except OSError as exc:
        raise UsageError(f"cannot read standard input: {exc.strerror}") from exc


class _LinePrinter:
    """Prints each batch of rows at once, as JSON Lines or CSV."""

    def __init__(self, columns: Sequence[ResultColumn], output_format: str) -> None:
        import csv

        self._columns = columns if output_format == "csv" else _with_distinct_names(columns)
        self._csv = csv.writer(sys.stdout, lineterminator="\n") if output_format == "csv" else None
        if self._csv:
            self._csv.writerow([column.name for column in columns])

    def add(self, rows: Sequence[Row]) -> None:
        """Print rows."""
        import orjson

        from derive.algebra.types import Type
        from derive.functions.types.type_info import text_function

        texts = [text_function(column.type, column.modifier) for column in self._columns]
        named = [(column.name, column.type) for column in self._columns]
        pairs = zip(self._columns, texts, strict=True)
        scaled = {column.name: text for column, text in pairs if column.type is Type.NUMERIC}
        for row in rows:
            if self._csv:
                data = zip(texts, row, strict=True)
                self._csv.writerow([None if datum is None else text(datum) for text, datum in data])
            else:
                sys.stdout.write(orjson.dumps(json_of(named, row, scaled)).decode() + "\n")

    def end(self) -> None:
        """Do nothing: all rows are printed."""


class _TablePrinter:
    """Prints rows as a table, after all rows are collected."""

    def __init__(self, columns: Sequence[ResultColumn]) -> None:
        self._columns = columns
        self._rows: list[list[str]] = []

    def add(self, rows: Sequence[Row]) -> None:
        """Collect rows."""
        from derive.functions.types.type_info import text_function

        texts = [text_function(column.type, column.modifier) for column in self._columns]
        for row in rows:
            pairs = zip(texts, row, strict=True)
            self._rows.append(["" if datum is None else visible_line(text(datum)) for text, datum in pairs])

    def end(self) -> None:
        """Print the table."""
        names = [visible_line(column.name) for column in self._columns]
        widths = [max(map(len, texts)) for texts in zip(names, *self._rows, strict=True)]
        rights = [column.type in numeric_types() for column in self._columns]
        lines = [" " + " | ".join(name.center(width) for name, width in zip(names, widths, strict=True))]
        lines.append("+".join("-" * (width + 2) for width in widths))
        for texts in self._rows:
            cells = zip(texts, widths, rights, strict=True)
            padded = (text.rjust(width) if right else text.ljust(width) for text, width, right in cells)
            lines.append(" " + " | ".join(padded))
        terminal = shutil.get_terminal_size().columns
        if sys.stdout.isatty() and max(map(len, lines)) > terminal:
            lines = self._records(names, terminal)
        count = len(self._rows)
        lines.append(f"({count} {'row' if count == 1 else 'rows'})")
        sys.stdout.write("".join(line.rstrip() + "\n" for line in lines) + "\n")

    def _records(self, names: list[str], terminal: int) -> list[str]:
        """Return a line for each value of each row, as psql prints rows that are wider than the terminal.

        A value that does not fit has lines of its own.
        """
        from derive.cli.folding import folded

        width = max(map(len, names))
        lines = []
        for number, texts in enumerate(self._rows, start=1):
            title = f"-[ RECORD {number} ]"
            lines.append(f"{title:-<{width + 1}}+{'-' * max(1, 2 * len(title) - width)}")
            for name, text in zip(names, texts, strict=True):
                line = f"{name:<{width}} | {text}"
                if len(line) <= terminal:
                    lines.append(line)
                else:
                    lines += [f"{name:<{width}} |", *folded(text, terminal, "  ", "  ")]
        return lines


def _with_distinct_names(columns: Sequence[ResultColumn]) -> Sequence[ResultColumn]:
    """Return the columns with distinct names, because a JSON object has each property once."""
    from derive.cli.console import note

    taken = {column.name for column in columns}
    seen: set[str] = set()
    distinct = []
    for number, column in enumerate(columns, start=1):
        name = column.name
        if name in seen:
            name = next(other for suffix in counted(2) if (other := f"{column.name}_{suffix}") not in taken)
            note(f"column {number} has the same name '{column.name}' as an earlier column: it is printed as '{name}'")
        taken.add(name)
        seen.add(column.name)
        distinct.append(replace(column, name=name))
    return distinct


def numeric_types() -> frozenset[Any]:
    """Return the types whose values are numbers."""
    from derive.algebra.types import Type

    return frozenset(
        {Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.REAL, Type.DOUBLE, Type.NUMERIC, Type.MZ_TIMESTAMP}
    )


def json_of(
    columns: Sequence[tuple[str, Any]], row: Row, texts: Mapping[str, Callable[[Any], str]] | None = None
) -> Mapping[str, Any]:
    """Return a row as a JSON object, which orjson can write.

    A number is written as PostgreSQL writes it, so that `40` of a document is `40`, also in a column of doubles.

    Args:
        columns: a name and a type for each column.
        row: a datum for each column.
        texts: functions that write the data of some columns, by name.
    """
    import math

    import orjson

    from derive.algebra.types import Type
    from derive.functions.scalar.json import json_datum_of
    from derive.functions.types.type_info import text_of

    values: dict[str, Any] = {}
    for (name, kind), datum in zip(columns, row, strict=True):
        if datum is None:
            values[name] = None
        elif texts and name in texts:
            values[name] = texts[name](datum)
        elif kind is Type.BOOLEAN:
            values[name] = bool(datum)
        elif kind is Type.JSONB or kind.element:
            values[name] = orjson.Fragment(json_datum_of(kind, datum))
        elif isinstance(datum, int) and kind in numeric_types():
            values[name] = datum
        elif isinstance(datum, float) and math.isfinite(datum):
            is_short = kind is Type.REAL or datum.is_integer()  # orjson would write 40.0, and all digits of a real
            values[name] = orjson.Fragment(text_of(kind, datum)) if is_short else datum
        else:
            values[name] = text_of(kind, datum)
    return values
