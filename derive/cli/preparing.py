"""After the first run that needed Spark, what `flowctl prepare` does is done by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from derive.spark.executor import SparkExecutor

SETTING = "FLOW_PREPARE"
"""The variable that turns it off (`never`), or on where nobody watches (`always`)."""


def prepare_after(spark: SparkExecutor) -> None:
    """Begin to archive Spark's classes in the background, if Spark was started without, and say so."""
    if not spark.was_started or not is_wanted(os.environ, is_watched=sys.stderr.isatty()):
        return
    from derive.cli.console import note
    from derive.spark.class_archive import can_prepare, is_prepared, prepare_in_background

    if not is_prepared() and can_prepare():
        prepare_in_background()
        note(f"archiving Spark's classes in the background: it will start in half the time ({SETTING}=never: not so)")


def is_wanted(environment: Mapping[str, str], *, is_watched: bool) -> bool:
    """Whether it is to be done.

    Left to itself it is done where a person watches the run. A service or a job of CI may be thrown away with all that
    it has made, and should not be slowed down by it: `flowctl prepare` is run where an image is built for these.

    Args:
        environment: variables of the process.
        is_watched: the run speaks to a terminal.
    """
    setting = environment.get(SETTING, "")
    return setting == "always" or (setting != "never" and is_watched)
