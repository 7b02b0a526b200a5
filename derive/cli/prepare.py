"""`flowctl prepare`."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Make Spark start in about half the time.

    Java archives the classes that Spark loads, in a file of some 170 MB in this Python environment. It takes as long as
    three starts of Spark, once for each version of Java and Spark; do it where an image for containers is built. On a
    terminal, the first run that has needed Spark does it by itself, unless FLOW_PREPARE=never.

    \b
    Examples:
      flowctl prepare
    """
    from derive.cli.console import note
    from derive.spark.class_archive import is_prepared, prepare

    if is_prepared():
        note("Spark's classes are archived already")
        return
    note("archiving the classes that Spark loads")
    archive = prepare()
    note(f"wrote {archive}, {archive.stat().st_size / 1e6:,.0f} MB")
