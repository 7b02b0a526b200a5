"""`flowctl status`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import catalog_options, data_folder, output_option


@click.command()
@catalog_options
@output_option
def command(source: Path, data: Path | None, output: str | None) -> None:
    """Show each task: how far it is, what it has processed, and why it stopped if it did."""
    import orjson

    from derive.catalog import load
    from derive.cli.console import print_error, print_rows
    from derive.document.clock import format_rfc3339
    from derive.errors import FlowError
    from derive.storage.store import Store

    catalog = load(source)
    store = Store(data_folder(source, data))
    rows = []
    errors = []
    for name in catalog.derivations:
        task, known = store.task(name), store.collection(name)
        error = orjson.loads(task.error) if task and task.error else None
        rows.append(
            {
                "task": name,
                "state": "failed" if error else "never run" if task is None else "ok",
                "shards": task.shards if task else None,
                "documents in": task.documents_in if task else 0,
                "documents out": task.documents_out if task else 0,
                "upper": format_rfc3339(known.upper) if known else None,
                "error": error["message"] if error else None,
            }
        )
        if error:
            errors.append((name, FlowError.from_json(error)))
    store.close()
    columns = ["task", "state", "shards", "documents in", "documents out", "upper"]
    print_rows(columns, rows, output)
    for _, failure in errors:
        print_error(failure)
