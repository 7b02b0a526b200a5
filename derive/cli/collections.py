"""`flowctl collections`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.options import catalog_options, data_folder, output_option, parse_time

if TYPE_CHECKING:
    from derive.protocol.specs import CollectionSpec
    from derive.storage.contents import ReadOptions
    from derive.storage.store import Store


@click.group()
def command() -> None:
    """List collections, and read their documents."""


@command.command("list")
@catalog_options
@output_option
def list_command(source: Path, data: Path | None, output: str | None) -> None:
    """List the catalog's collections: how much they hold, and between which times they are exactly known."""
    from derive.catalog import load
    from derive.cli.console import print_rows
    from derive.document.clock import format_rfc3339
    from derive.storage.store import Store

    catalog = load(source)
    store = Store(data_folder(source, data))
    rows = []
    for name, spec in catalog.collections.items():
        known = store.collection(name)
        rows.append(
            {
                "collection": name,
                "key": ", ".join(spec.key),
                "derived": "yes" if name in catalog.derivations else "no",
                "documents": known.documents if known else 0,
                "segments": known.segments if known else 0,
                "bytes": known.bytes if known else 0,
                "since": format_rfc3339(known.since) if known else None,
                "upper": format_rfc3339(known.upper) if known else None,
            }
        )
    store.close()
    print_rows(("collection", "key", "derived", "documents", "segments", "bytes", "since", "upper"), rows, output)


@command.command("read")
@catalog_options
@click.option("--collection", required=True, help="What to read.")
@click.option(
    "--reduce", "reduced", is_flag=True, help="One document per key, reduced by the schema's annotations (on Spark)."
)
@click.option("--since", metavar="TIME", help="Only documents published at or after this RFC 3339 time.")
@click.option("--as-of", metavar="TIME", help="The contents at this RFC 3339 time.")
@click.option("--partitions", metavar="JSON", help='Logical partitions: \'{"include": {"field": ["value"]}}\'.')
@click.option("--uuid", is_flag=True, help="Add /_meta/uuid, which holds the publication time.")
@click.option("--master", help="Spark master URL, for --reduce.  [default: this machine]")
def read_command(
    source: Path,
    data: Path | None,
    collection: str,
    since: str | None,
    as_of: str | None,
    partitions: str | None,
    master: str | None,
    *,
    reduced: bool,
    uuid: bool,
) -> None:
    """Print documents of a collection, one JSON object per line.

    \b
    Examples:
      flowctl collections read --collection acmeBank/balances --reduce
      flowctl collections read --collection acmeBank/transfer-outcomes --partitions '{"include":{"outcome":["deny"]}}'
    """
    import orjson

    from derive.catalog import load
    from derive.errors import UsageError
    from derive.storage.contents import ReadOptions, selector_of
    from derive.storage.store import Store

    catalog = load(source)
    spec = catalog.find_collection(collection)
    try:
        selection = orjson.loads(partitions) if partitions else {}
    except orjson.JSONDecodeError as exc:
        raise UsageError(f"--partitions is not JSON: {exc}") from exc
    if not isinstance(selection, dict):
        raise UsageError("--partitions takes a JSON object")
    options = ReadOptions(_clock("--since", since), _clock("--as-of", as_of), selector_of(spec, selection))
    folder = data_folder(source, data)
    store = Store(folder)
    rows = _reduced(store, spec, options, master, folder) if reduced else _history(store, spec, options)
    for clock, seq, key, text in rows:
        sys.stdout.write((_with_uuid(clock, seq, key, text) if uuid else text) + "\n")
    store.close()


def _clock(option: str, text: str | None) -> int | None:
    return None if text is None else parse_time(option, text)


def _history(store: Store, spec: CollectionSpec, options: ReadOptions) -> Iterator[tuple[int, int, bytes, str]]:
    from derive.storage.contents import read_rows

    for batch in read_rows(store, spec, options):
        columns = [batch.column(place).to_pylist() for place in (0, 2, 3, 4)]
        yield from zip(*columns, strict=True)


def _reduced(
    store: Store, spec: CollectionSpec, options: ReadOptions, master: str | None, folder: Path
) -> Iterator[tuple[int, int, bytes, str]]:
    from derive.engine.read import read_reduced
    from derive.engine.spark import SparkExecutor

    executor = SparkExecutor(master, folder / "logs" / "spark.log")
    try:
        yield from read_reduced(executor, store, spec, options)
    finally:
        executor.close()


def _with_uuid(clock: int, seq: int, key: bytes, text: str) -> str:
    from derive.document.clock import document_uuid
    from derive.document.exact import dump_exact, parse_exact

    document = parse_exact(text.encode())
    document["_meta"] = {**document.get("_meta", {}), "uuid": document_uuid(clock, seq, key)}
    return dump_exact(document).decode()
