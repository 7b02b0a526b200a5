"""`flowctl prepare`, and the archiving of Spark's classes after the first run that needed Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from derive.cli.options import quiet_option

if TYPE_CHECKING:
    from derive.spark.executor import SparkExecutor

SETTING = "FLOW_PREPARE"
"""Environment variable that disables the archiving (`never`), or enables it without a terminal (`always`)."""


def prepare_after(spark: SparkExecutor) -> None:
    """Begin to archive Spark's classes in the background, if Spark was started without an archive, and print a note."""
    if not spark.was_started or not is_useful(os.environ, is_watched=sys.stderr.isatty()):
        return
    from derive.cli.console import note
    from derive.spark.class_archive import can_prepare, is_prepared, prepare_in_background

    if not is_prepared() and can_prepare():
        prepare_in_background()
        note(f"archiving Spark's classes in the background, to halve Spark's start ({SETTING}=never disables it)")


def is_useful(environment: Mapping[str, str], *, is_watched: bool) -> bool:
    """Return whether Spark's classes are to be archived.

    By default, the classes are archived if the run writes to a terminal. The environment of a service or a CI job may
    be deleted after the run, so its image should be built with `flowctl prepare`.

    Args:
        environment: variables of the process.
        is_watched: whether the run writes to a terminal.
    """
    setting = environment.get(SETTING, "")
    return setting == "always" or (setting != "never" and is_watched)


@click.command()
@quiet_option
def command() -> None:
    """Make Spark start in about half the time.

    Java archives the classes that Spark loads in a file of some 170 MB in this Python environment. The command takes as
    long as three starts of Spark, and is needed once for each version of Java and Spark. Run it when you build a
    container image. On a terminal, the first run that needs Spark archives the classes in the background, unless
    FLOW_PREPARE=never.

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
