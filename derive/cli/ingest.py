"""`flowctl ingest` and `flowctl ingestions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.follow import follow as follow_files
from derive.cli.follow import line_formats, require_followable
from derive.cli.inputs import (
    InputFile,
    InputFormat,
    format_of,
    input_options,
    json_form,
    listed_files,
    shown_name,
    text_of,
)
from derive.cli.options import (
    catalog_options,
    created_folder,
    data_folder,
    open_store,
    optional_catalog,
    output_option,
    quiet_option,
    segments_option,
    stored_folder,
    wide_option,
)
from derive.plural import counted

if TYPE_CHECKING:
    from derive.cli.console import Progress
    from derive.protocol.specs import CollectionSpec
    from derive.storage.inputs.line import Line
    from derive.storage.metadata.followed import FilePosition
    from derive.storage.metadata.ingestions import Load
    from derive.storage.store import Store


@click.command()
@catalog_options
@segments_option
@click.option("--collection", required=True, help="The collection to load into.")
@click.option(
    "--clock",
    metavar="/PTR",
    help="Property with each document's time (RFC 3339, ascending), to load history before the first run.",
)
@click.option(
    "--load-id",
    metavar="ID",
    help="Identifier of the load: a load that is repeated is ingested once.",
)
@click.option("--follow", is_flag=True, help="Ingest lines as files grow and appear, until Ctrl-C; each line once.")
@click.option("--until-idle", is_flag=True, help="With --follow: stop once all complete lines are ingested.")
@click.option("--dry-run", is_flag=True, help="Check all documents, and ingest nothing.")
@click.option(
    "-o", "--output", type=click.Choice(["json"]), help="Print a JSON object for each file.  [default: print nothing]"
)
@input_options
@quiet_option
def command(
    *,
    source: Path,
    data: Path | None,
    collection: str,
    form: str | None,
    delimiter: str | None,
    clock: str | None,
    most_mib: int,
    load_id: str | None,
    follow: bool,
    until_idle: bool,
    dry_run: bool,
    output: str | None,
    files: tuple[str, ...],
) -> None:
    """Load FILES (or standard input, '-') into a collection. Each file is loaded as a whole or not at all.

    A folder stands for all its files with a known suffix (.jsonl, .ndjson, .json, .csv, .tsv, .parquet), sorted by
    their paths. JSON and CSV may be compressed with gzip or zstd (.jsonl.gz, .csv.zst). The first line of CSV names
    its columns. An empty CSV cell, or a Parquet null, is left out of the document.

    Each document gets the time of its ingestion as its clock. With --clock, the clock is a time in the document. A
    clock cannot be in the part of the collection that is final, and 'flowctl run' makes everything final up to the
    present. So --clock loads history before the first run. Ingest later documents without --clock: their event time
    stays a field, by which derivations form windows (docs/ingest.md#clocks).

    With --load-id, an interrupted command can be repeated: the documents are in the collection once. Without this
    option, a file whose content was ingested before is ingested again, with a warning.

    With --follow, FILES of JSON Lines and CSV may grow: each complete line is ingested once, also after a restart.
    Rotated and truncated files, and new files in folders, are recognized. A defect stops its file until the file is
    mended. --until-idle ends the command when no complete line is left.

    With --dry-run, the command prints how many documents each file has, or the first errors of each file.

    With -o json, each loaded file is one object on standard output: collection, file, load_id, documents (ingested by
    this command), and repeated (whether the load was there already).

    \b
    Examples:
      flowctl ingest --collection acmeBank/transfers transfers.jsonl
      flowctl ingest --collection acmeBank/transfers --dry-run exports/
      flowctl ingest --collection acmeBank/transfers --clock /at history.jsonl.gz
      flowctl ingest --collection acmeBank/transfers \\
        --load-id 2024-05-01 transfers.jsonl
      flowctl ingest --collection acmeBank/transfers --format csv \\
        --delimiter ';' export.txt
      flowctl ingest --collection acmeBank/transfers --follow logs/
      generate | flowctl ingest --collection acmeBank/transfers --format csv
    """
    from derive.catalog import load_without_tests

    spec = load_without_tests(source).find_ingested(collection)
    if follow or until_idle:
        _require_growing(clock, load_id, is_dry=dry_run, is_following=follow)
        form_of = line_formats(files, form, delimiter, most_mib << 20)
        require_followable(files, form_of, until_idle=until_idle)
        with closing(open_store(created_folder(source, data))) as store:
            follow_files(store, spec, files, form_of, until_idle=until_idle, output=output)
        return
    inputs = [(name, format_of(name, form, delimiter)) for name in listed_files(files)]
    _require(clock, load_id, inputs, is_dry=dry_run)
    folder = data_folder(source, data) if dry_run else created_folder(source, data)
    with closing(open_store(folder, reading=dry_run)) as store:
        if dry_run:
            _check(store, spec, inputs, clock, most_mib << 20, output)
        else:
            _load(store, spec, inputs, clock, load_id, most_mib << 20, output)


def _load(
    store: Store,
    spec: CollectionSpec,
    inputs: Sequence[tuple[str, InputFormat]],
    clock: str | None,
    load_id: str | None,
    most_bytes: int,
    output: str | None,
) -> None:
    from derive.cli.console import Progress, note
    from derive.storage.ingest import Ingestion
    from derive.storage.metadata.ingestions import LoadedFile, RepeatedLoadError

    with Progress() as progress:
        for name, form in inputs:
            shown = shown_name(name)
            file = InputFile(name, load_id)
            show = partial(_show_progress, progress, file)
            show(0)
            ingestion = Ingestion(store, spec, clock=clock, progress=show)
            before = _earlier_loads(store, spec.name, file) if load_id is None else []
            with _documents(file, form, spec, most_bytes) as lines:
                documents, is_repeated = 0, False
                try:
                    documents = ingestion.load(shown, lines, LoadedFile(shown, load_id, file.digest))
                    progress.done(shown, documents)
                    if documents:
                        _warn_of_repetition(spec.name, shown, before)
                except KeyboardInterrupt:
                    progress.pause()
                    note(
                        f"{shown} is ingested as a whole or not at all: see what is ingested with 'flowctl ingestions"
                        f" list --collection {spec.name}', and repeat the command for the rest"
                    )
                    raise
                except RepeatedLoadError as repeated:
                    is_repeated = True
                    progress.stop(shown)
                    note(f"{repeated.message}; nothing more was ingested")
            if output == "json":
                progress.pause()
                _print_load(spec.name, name, load_id, documents, is_repeated=is_repeated)


def _show_progress(progress: Progress, file: InputFile, documents: int) -> None:
    """Show the number of documents of a file that were read, and the share of its bytes."""
    progress.show(shown_name(file.name), documents, share=file.share())


def _check(
    store: Store,
    spec: CollectionSpec,
    inputs: Sequence[tuple[str, InputFormat]],
    clock: str | None,
    most_bytes: int,
    output: str | None,
) -> None:
    """Check files, and print the result for each; exit with 1 if one is not valid."""
    from derive.cli.console import Progress, note, print_error
    from derive.errors import DocumentError
    from derive.storage.ingest import check
    from derive.time import BEGINNING

    after, is_valid = BEGINNING, True
    with Progress() as progress:
        for name, form in inputs:
            shown, file = shown_name(name), InputFile(name, is_hashed=False)
            show = partial(_show_progress, progress, file)
            try:
                with _documents(file, form, spec, most_bytes) as lines:
                    documents, after = check(store, spec, shown, lines, clock=clock, after=after, progress=show)
            except DocumentError as error:
                print_error(error)
                is_valid = False
                continue
            finally:
                progress.stop(shown)
            note(f"{shown}: {counted(documents, 'document')} would be ingested into '{spec.name}'")
            if output == "json":
                progress.pause()
                _print_load(spec.name, name, None, documents, is_repeated=False)
    if not is_valid:
        raise click.exceptions.Exit(1)


def _require(
    clock: str | None, load_id: str | None, inputs: Sequence[tuple[str, InputFormat]], *, is_dry: bool
) -> None:
    """Check the values of options.

    Raises:
        UsageError: a value is wrong.
    """
    from derive.catalog.language.structure import is_pointer
    from derive.errors import UsageError

    if clock is not None and not is_pointer(clock):
        raise UsageError(f"--clock takes a JSON pointer, such as /{clock.lstrip('/') or 'at'}")
    if load_id is not None and is_dry:
        raise UsageError("--dry-run ingests nothing, so it cannot be combined with --load-id")
    if load_id is not None and len(inputs) > 1:
        raise UsageError("--load-id names the load of one file", hint="ingest each file with its own --load-id")
    if load_id == "":
        raise UsageError("--load-id takes a text that is not empty")


def _require_growing(clock: str | None, load_id: str | None, *, is_dry: bool, is_following: bool) -> None:
    """Check the options beside --follow and --until-idle.

    Raises:
        UsageError: an option has no meaning for growing files.
    """
    from derive.errors import UsageError

    if not is_following:
        raise UsageError("--until-idle is for --follow", hint="without --follow, ingest ends after the last file")
    options = {"--clock": clock is not None, "--load-id": load_id is not None, "--dry-run": is_dry}
    refused = [option for option, is_given in options.items() if is_given]
    if refused:
        raise UsageError(f"--follow cannot be combined with {refused[0]}", hint="each line is ingested once anyway")


@contextmanager
def _documents(file: InputFile, form: InputFormat, spec: CollectionSpec, most_bytes: int) -> Iterator[Iterator[Line]]:
    from derive.storage.inputs.json_documents import json_documents
    from derive.storage.inputs.line import csv_rows, json_lines
    from derive.storage.inputs.parquet_rows import parquet_rows

    if form.form == "parquet":
        yield parquet_rows(file.name, spec, most_bytes)
        return
    with text_of(file) as text:
        if form.form == "csv":
            yield csv_rows(text, spec, shown_name(file.name), most_bytes, form.delimiter)
        else:
            read = json_lines if (form.form or json_form(text)) == "jsonl" else json_documents
            yield read(text, most_bytes)


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


def _earlier_loads(store: Store, collection: str, file: InputFile) -> list[Load]:
    """Return the loads of the content of a file into a collection, the latest first."""
    digest = file.digest() if file.is_regular else ""
    return store.loads_of_content(collection, digest) if digest else []


def _warn_of_repetition(collection: str, name: str, loads: Sequence[Load]) -> None:
    """Print a warning about a file that was ingested without an identifier, if earlier loads had its content."""
    from derive.cli.console import note

    if loads:
        times = "once" if len(loads) == 1 else counted(len(loads), "time")
        note(
            f"the content of {name} was ingested into '{collection}' {times} before, the last time"
            f" {loads[0].described}; it was ingested again. This load has no id, so it cannot be undone. With --load-id"
            " ID, a content is ingested once, and 'flowctl ingestions undo' can remove it",
            level="warn",
        )


@click.group()
def ingestions_command() -> None:
    """List and undo loads of `flowctl ingest`.

    \b
    Examples:
      flowctl ingestions list --collection acmeBank/transfers
    """


_LISTED = ("collection", "load_id", "at", "file", "documents", "bytes", "state")
_SPARE = ("bytes", "documents", "file", "state")


@ingestions_command.command("list")
@catalog_options
@click.option("--collection", help="Only the loads of this collection.")
@output_option
@wide_option
def list_command(source: Path, data: Path | None, collection: str | None, output: str | None, *, wide: bool) -> None:
    """List the loads of collections in the order of their commits.

    For each collection, the last 1,000 loads without --load-id are listed. A file of 'ingest --follow' is one load,
    at the time of its last commit; its bytes are those of the file that are ingested.

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
        followed = store.positions(collection)
    rows = [(load.at, _listed(load)) for load in loads]
    rows += [(position.at, _listed_file(name, position)) for name, position in followed]
    rows.sort(key=lambda row: row[0])
    print_rows(_LISTED, [row for _, row in rows], output, spare=_SPARE, wide=wide)


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


def _listed_file(collection: str, position: FilePosition) -> dict[str, Any]:
    from derive.document.clock import format_rfc3339

    return {
        "collection": collection,
        "load_id": None,
        "at": format_rfc3339(position.at),
        "file": position.path,
        "documents": position.documents,
        "bytes": position.offset,
        "state": f"followed to line {position.lines:,}",
    }


@ingestions_command.command("undo")
@catalog_options
@click.option("--collection", required=True, help="The collection.")
@click.option("--load-id", required=True, metavar="ID", help="The --load-id of the ingestion.")
@click.option(
    "--reset-readers", is_flag=True, help="Reset the tasks that read the collection, if one has read the load."
)
@quiet_option
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
