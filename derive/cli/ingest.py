"""`flowctl ingest`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import catalog_options, data_folder

if TYPE_CHECKING:
    from derive.protocol.specs import CollectionSpec
    from derive.storage.ingest import Line

_SUFFIXES = {".csv": "csv", ".parquet": "parquet"}


@click.command()
@catalog_options
@click.option("--collection", required=True, help="Where the documents go.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    help="Form of the files.  [default: by the file's suffix, else jsonl]",
)
@click.option(
    "--clock", metavar="/PTR", help="Take each document's time from here (RFC 3339, ascending) to load history."
)
@click.argument("files", nargs=-1)
def command(
    source: Path, data: Path | None, collection: str, form: str | None, clock: str | None, files: tuple[str, ...]
) -> None:
    """Load FILES (or standard input, '-') into a collection. Each file is loaded as a whole or not at all.

    \b
    Examples:
      flowctl ingest --collection acmeBank/transfers transfers.jsonl
      zcat history.jsonl.gz | flowctl ingest --collection acmeBank/transfers --clock /at
    """
    from derive.catalog import load
    from derive.catalog.names import is_pointer
    from derive.cli.console import Progress
    from derive.errors import UsageError
    from derive.storage.ingest import Ingestion
    from derive.storage.store import Store

    catalog = load(source)
    spec = catalog.find_collection(collection)
    if collection in catalog.derivations:
        raise UsageError(f"'{collection}' is derived, so nothing can be ingested into it")
    if clock is not None and not is_pointer(clock):
        raise UsageError(f"--clock takes a JSON pointer, such as /{clock.lstrip('/') or 'at'}")
    for name in files:
        if name != "-" and not Path(name).is_file():
            raise UsageError(f"there is no file {name}")
    store = Store(data_folder(source, data))
    with Progress() as progress:
        for name in files or ("-",):
            shown = "standard input" if name == "-" else name
            progress.show(shown, 0)
            ingestion = Ingestion(store, spec, clock=clock, progress=partial(progress.show, shown))
            with _documents(name, form, spec) as lines:
                progress.done(shown, ingestion.load(shown, lines))
    store.close()


@contextmanager
def _documents(name: str, form: str | None, spec: CollectionSpec) -> Iterator[Iterator[Line]]:
    from derive.errors import UsageError
    from derive.storage.ingest import csv_lines, json_lines, parquet_rows

    form = form or _SUFFIXES.get(Path(name).suffix, "jsonl")
    if form == "parquet":
        if name == "-":
            raise UsageError("a Parquet file cannot be read from standard input")
        yield parquet_rows(name)
        return
    opened: AbstractContextManager[Any] = nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb")  # noqa: SIM115
    with opened as stream:
        yield csv_lines(stream, spec, name) if form == "csv" else json_lines(stream)
