"""`flowctl ingest` and `flowctl ingestions`."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from derive.cli.options import (
    catalog_options,
    data_folder,
    open_store,
    optional_catalog,
    output_option,
    stored_folder,
    wide_option,
)

if TYPE_CHECKING:
    from derive.errors import UsageError
    from derive.protocol.specs import CollectionSpec
    from derive.storage.inputs.line import Line
    from derive.storage.metadata.ingestions import Load
    from derive.storage.store import Store

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
@click.option(
    "--load-id",
    metavar="ID",
    help="Identifier of the load: a load that is repeated is ingested once.",
)
@click.option(
    "-o", "--output", type=click.Choice(["json"]), help="Print a JSON object for each file.  [default: print nothing]"
)
@click.argument("files", nargs=-1)
def command(
    *,
    source: Path,
    data: Path | None,
    collection: str,
    form: str | None,
    clock: str | None,
    most_mib: int,
    load_id: str | None,
    output: str | None,
    files: tuple[str, ...],
) -> None:
    """Load FILES (or standard input, '-') into a collection. Each file is loaded as a whole or not at all.

    JSON Lines and CSV may be compressed with gzip or zstd (.jsonl.gz, .csv.zst). The first line of CSV names its
    columns. An empty CSV cell, or a Parquet null, is left out of the document.

    With --load-id, an interrupted command can be repeated: the documents are in the collection once. Without this
    option, a file whose content was ingested before is ingested again, with a warning.

    With -o json, each loaded file is one object on standard output: collection, file, load_id, documents (ingested by
    this command), and repeated (whether the load was there already).

    \b
    Examples:
      flowctl ingest --collection acmeBank/transfers transfers.jsonl
      flowctl ingest --collection acmeBank/transfers --clock /at history.jsonl.gz
      flowctl ingest --collection acmeBank/transfers \\
        --load-id 2024-05-01 transfers.jsonl
      generate | flowctl ingest --collection acmeBank/transfers --format csv
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import Progress, note
    from derive.errors import UsageError
    from derive.storage.ingest import Ingestion
    from derive.storage.metadata.ingestions import LoadedFile, RepeatedLoadError

    catalog = load_without_tests(source)
    spec = catalog.find_collection(collection)
    if collection in catalog.derivations:
        raise UsageError(
            f"'{collection}' is derived, so nothing can be ingested into it",
            hint=f"ingest into a source: {', '.join(catalog.derivations[collection].sources)}",
        )
    _require(clock, load_id, files)
    store = open_store(data_folder(source, data))
    with Progress() as progress:
        for name in files or ("-",):
            shown = _shown(name)
            file = _File(name, load_id)
            if load_id is None:
                _warn_of_repetition(store, collection, file)
            progress.show(shown, 0)
            ingestion = Ingestion(store, spec, clock=clock, progress=partial(progress.show, shown))
            with _documents(file, form, spec, most_mib << 20) as lines:
                documents, is_repeated = 0, False
                try:
                    documents = ingestion.load(shown, lines, LoadedFile(shown, load_id, file.digest))
                    progress.done(shown, documents)
                except RepeatedLoadError as repeated:
                    is_repeated = True
                    progress.stop(shown)
                    note(f"{repeated.message}; nothing more was ingested")
            if output == "json":
                _print_load(collection, name, load_id, documents, is_repeated=is_repeated)
    store.close()


def _require(clock: str | None, load_id: str | None, files: tuple[str, ...]) -> None:
    """Check the values of options and arguments.

    Raises:
        UsageError: a value is wrong.
    """
    from derive.catalog.language.structure import is_pointer
    from derive.errors import UsageError

    if clock is not None and not is_pointer(clock):
        raise UsageError(f"--clock takes a JSON pointer, such as /{clock.lstrip('/') or 'at'}")
    if load_id is not None and len(files) > 1:
        raise UsageError("--load-id names the load of one file", hint="ingest each file with its own --load-id")
    if load_id == "":
        raise UsageError("--load-id takes a text that is not empty")
    for name in files:
        if name != "-" and Path(name).is_dir():
            raise UsageError(f"{name} is a folder", hint=f"name its files, such as {Path(name) / '*.jsonl'}")
        if name != "-" and not Path(name).exists():
            raise UsageError(f"there is no file {name}")


def _print_load(collection: str, name: str, load_id: str | None, documents: int, *, is_repeated: bool) -> None:
    import orjson

    loaded = {
        "collection": collection,
        "file": name,
        "load_id": load_id,
        "documents": documents,
        "repeated": is_repeated,
    }
    click.echo(orjson.dumps(loaded).decode())


def _warn_of_repetition(store: Store, collection: str, file: _File) -> None:
    from derive.cli.console import note

    digest = file.digest() if file.is_regular else ""
    loads = store.loads_of_content(collection, digest) if digest else []
    if loads:
        times = "once" if len(loads) == 1 else f"{len(loads):,} times"
        note(
            f"the content of {file.name} was ingested into '{collection}' {times} before, the last time"
            f" {loads[0].described}; it is ingested again",
            level="warn",
        )


class _File:
    """A file or standard input, and the digest of its content.

    The digest of a regular file is computed at the beginning. The content of other inputs is read only once, so with a
    load identifier the digest is computed while the documents are read.

    Args:
        name: path of the file, or '-'.
        load_id: identifier of the load; None if missing.
    """

    def __init__(self, name: str, load_id: str | None) -> None:
        self.name, self._load_id = name, load_id
        self.is_regular = name != "-" and Path(name).is_file()
        self._state = self._stat()
        self._digest = ""
        self._hashed: _Hashed | None = None
        if self.is_regular:
            try:
                with Path(name).open("rb") as stream:
                    self._digest = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError as exc:
                raise _unreadable(name, exc) from exc

    def _stat(self) -> tuple[int, int, int] | None:
        if not self.is_regular:
            return None
        status = Path(self.name).stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def open(self) -> io.BufferedReader:
        """Open the content for reading.

        Raises:
            OSError: the file cannot be opened.
        """
        stream: Any = sys.stdin.buffer if self.name == "-" else Path(self.name).open("rb")  # noqa: SIM115
        if self.is_regular or self._load_id is None:
            return cast("io.BufferedReader", stream)
        self._hashed = _Hashed(stream)
        return io.BufferedReader(self._hashed, 1 << 17)

    def digest(self) -> str:
        """Read the content to its end, and return its SHA-256; empty for an input without digest.

        Raises:
            DocumentError: the file of a load with an identifier has changed since the digest was computed.
        """
        if self._hashed is not None:
            return self._hashed.digest()
        if self._stat() == self._state:
            return self._digest
        if self._load_id is None:
            return ""
        from derive.errors import DocumentError
        from derive.storage.inputs.line import NOTHING_INGESTED

        raise DocumentError(f"{self.name} has changed while it was read", hint=NOTHING_INGESTED)


class _Hashed(io.RawIOBase):
    """A stream that computes the SHA-256 of the bytes that are read."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._sum = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._stream.read1(len(buffer))  # without waiting until the buffer is full
        self._sum.update(chunk)
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def digest(self) -> str:
        """Read to the end, and return the digest of all bytes."""
        while chunk := self._stream.read(1 << 17):
            self._sum.update(chunk)
        return self._sum.hexdigest()


@contextmanager
def _documents(file: _File, form: str | None, spec: CollectionSpec, most_bytes: int) -> Iterator[Iterator[Line]]:
    from derive.errors import UsageError
    from derive.storage.inputs.line import SUFFIXES, csv_rows, json_lines
    from derive.storage.inputs.parquet_rows import parquet_rows

    name = file.name
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
    with _text(file) as text:
        is_csv = form == "csv"
        yield csv_rows(text, spec, _shown(name), most_bytes) if is_csv else json_lines(text, most_bytes)


@contextmanager
def _text(file: _File) -> Iterator[BinaryIO]:
    """Open the text of a file or of standard input, decompressed if it is compressed."""
    from derive.storage.inputs.line import unpacked

    shown = _shown(file.name)
    with ExitStack() as stack:
        try:
            stream = file.open()
            if file.name != "-":
                stack.enter_context(stream)
            text = unpacked(stream, shown)
        except OSError as exc:
            raise _unreadable(shown, exc) from exc
        yield text


def _unreadable(shown: str, exc: OSError) -> UsageError:
    from derive.errors import UsageError

    return UsageError(f"cannot read {shown}: {exc.strerror}")


def _shown(name: str) -> str:
    return "standard input" if name == "-" else name


@click.group()
def ingestions_command() -> None:
    """List and undo loads of `flowctl ingest`."""


_LISTED = ("collection", "load_id", "at", "file", "documents", "bytes", "state")
_SPARE = ("bytes", "documents", "file", "state")


@ingestions_command.command("list")
@catalog_options
@click.option("--collection", help="Only the loads of this collection.")
@output_option
@wide_option
def list_command(source: Path, data: Path | None, collection: str | None, output: str | None, *, wide: bool) -> None:
    """List the loads of collections in the order of their commits.

    For each collection, the last 1,000 loads without --load-id are listed.

    \b
    Examples:
      flowctl ingestions list
      flowctl ingestions list --collection acmeBank/transfers
      flowctl ingestions list -o json | jq 'select(.load_id == "2024-05-01")'
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import print_rows

    if collection is not None:
        load_without_tests(source).find_collection(collection)
    else:
        optional_catalog(source, data)  # so that a wrong folder is an error
    with closing(open_store(stored_folder(source, data), reading=True)) as store:
        loads = store.loads(collection)
    print_rows(_LISTED, [_listed(load) for load in loads], output, spare=_SPARE, wide=wide)


def _listed(load: Load) -> dict[str, Any]:
    from derive.document.clock import format_rfc3339

    return {
        "collection": load.collection,
        "load_id": load.load_id,
        "at": format_rfc3339(load.at),
        "file": load.name,
        "documents": load.documents,
        "bytes": load.bytes,
        "state": "loaded" if load.undone is None else f"undone at {format_rfc3339(load.undone)}",
    }


@ingestions_command.command("undo")
@catalog_options
@click.option("--collection", required=True, help="The collection.")
@click.option("--load-id", required=True, metavar="ID", help="The --load-id of the ingestion.")
@click.option(
    "--reset-readers", is_flag=True, help="Reset the tasks that read the collection, if one has read the load."
)
def undo_command(source: Path, data: Path | None, collection: str, load_id: str, *, reset_readers: bool) -> None:
    """Remove the documents of a load that no reader has read.

    With --reset-readers, the tasks that read the collection, directly or indirectly, start over without the load, as
    after `flowctl reset --cascade`. The reset and the removal are one commit.

    The ID can be used again. The time up to the last document stays final.

    \b
    Examples:
      flowctl ingestions undo --collection acmeBank/transfers --load-id 2024-05-01
      flowctl ingestions undo --collection acmeBank/transfers \\
        --load-id 2024-05-01 --reset-readers
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import note
    from derive.engine.reset import undo

    catalog = load_without_tests(source)
    catalog.find_collection(collection)
    with closing(open_store(stored_folder(source, data))) as store:
        tasks = undo(catalog, store, collection, load_id, reset_readers=reset_readers)
    note(f"load '{load_id}' of '{collection}' is undone")
    for name in tasks:
        note(f"{name} starts over with the next run, or in a running 'flowctl run --watch'")
