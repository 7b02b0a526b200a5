"""`flowctl prepare`."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Make Spark start in about half the time.

    Java archives the classes that Spark loads in a file of some 170 MB in this Python environment. This takes as long
    as three starts of Spark, and is needed once for each version of Java and Spark; run it when you build a container
    image. On a terminal, the first run that needs Spark starts it in the background, unless FLOW_PREPARE=never.

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
