"""`flowctl ingest`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from derive.cli.options import catalog_options, data_folder, open_store

if TYPE_CHECKING:
    from derive.protocol.specs import CollectionSpec
    from derive.storage.inputs.line import Line

_FORMS = {".csv": "csv", ".parquet": "parquet"}


@click.command()
@catalog_options
@click.option("--collection", required=True, help="The collection to load into.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    help="Format of the files.  [default: by the file's suffix, else jsonl]",
)
@click.option(
    "--clock", metavar="/PTR", help="Property with each document's time (RFC 3339, ascending), to load history."
)
@click.option(
    "--max-document-mib",
    "most_mib",
    type=click.IntRange(1, 2047),
    default=128,
    show_default=True,
    help="Largest document (line or row), in MiB.",
)
@click.argument("files", nargs=-1)
def command(
    source: Path,
    data: Path | None,
    collection: str,
    form: str | None,
    clock: str | None,
    most_mib: int,
    files: tuple[str, ...],
) -> None:
    """Load FILES (or standard input, '-') into a collection. Each file is loaded as a whole or not at all.

    JSON Lines and CSV may be compressed with gzip or zstd (.jsonl.gz, .csv.zst). The first line of CSV names its
    columns. An empty CSV cell, or a Parquet null, is left out of the document.

    \b
    Examples:
      flowctl ingest --collection acmeBank/transfers transfers.jsonl
      flowctl ingest --collection acmeBank/transfers --clock /at history.jsonl.gz
      generate | flowctl ingest --collection acmeBank/transfers --format csv
    """
    from derive.catalog import load_without_tests
    from derive.catalog.language.structure import is_pointer
    from derive.cli.console import Progress
    from derive.errors import UsageError
    from derive.storage.ingest import Ingestion

    catalog = load_without_tests(source)
    spec = catalog.find_collection(collection)
    if collection in catalog.derivations:
        raise UsageError(f"'{collection}' is derived, so nothing can be ingested into it")
    if clock is not None and not is_pointer(clock):
        raise UsageError(f"--clock takes a JSON pointer, such as /{clock.lstrip('/') or 'at'}")
    for name in files:
        if name != "-" and Path(name).is_dir():
            raise UsageError(f"{name} is a folder", hint=f"name its files, such as {Path(name) / '*.jsonl'}")
        if name != "-" and not Path(name).exists():
            raise UsageError(f"there is no file {name}")
    store = open_store(data_folder(source, data))
    with Progress() as progress:
        for name in files or ("-",):
            shown = _shown(name)
            progress.show(shown, 0)
            ingestion = Ingestion(store, spec, clock=clock, progress=partial(progress.show, shown))
            with _documents(name, form, spec, most_mib << 20) as lines:
                progress.done(shown, ingestion.load(shown, lines))
    store.close()


@contextmanager
def _documents(name: str, form: str | None, spec: CollectionSpec, most_bytes: int) -> Iterator[Iterator[Line]]:
    from derive.errors import UsageError
    from derive.storage.inputs.csv_rows import csv_rows
    from derive.storage.inputs.line import SUFFIXES, json_lines
    from derive.storage.inputs.parquet_rows import parquet_rows

    path = Path(name)
    is_packed = path.suffix in SUFFIXES
    form = form or _FORMS.get(path.with_suffix("").suffix if is_packed else path.suffix, "jsonl")
    if form == "parquet" and is_packed:
        raise UsageError(f"{name} is a compressed Parquet file, which cannot be read", hint="decompress it first")
    if form == "parquet" and name == "-":
        raise UsageError("a Parquet file cannot be read from standard input")
    if form == "parquet":
        yield parquet_rows(name, spec, most_bytes)
        return
    with _text(name) as text:
        is_csv = form == "csv"
        yield csv_rows(text, spec, _shown(name), most_bytes) if is_csv else json_lines(text, most_bytes)


@contextmanager
def _text(name: str) -> Iterator[BinaryIO]:
    """Open the text of a file or of standard input, decompressed if it is compressed."""
    from derive.errors import UsageError
    from derive.storage.inputs.line import unpacked

    shown = _shown(name)
    with ExitStack() as stack:
        try:
            stream: Any = sys.stdin.buffer if name == "-" else stack.enter_context(Path(name).open("rb"))
            text = unpacked(stream, shown)
        except OSError as exc:
            raise UsageError(f"cannot read {shown}: {exc.strerror}") from exc
        yield text


def _shown(name: str) -> str:
    return "standard input" if name == "-" else name
