"""`flowctl environment`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import quiet_option
from derive.plural import counted


@click.group()
def command() -> None:
    """Pack this package for the machines of a cluster.

    \b
    Examples:
      flowctl environment pack
    """


@command.command("pack")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The archive.  [default: flow-environment.tar.gz, or flow-package.tar.gz with --package-only]",
)
@click.option("--package-only", is_flag=True, help="Pack only this package, for machines that have its libraries.")
@quiet_option
def pack_command(output: Path | None, *, package_only: bool) -> None:
    """Write an archive with Python, this package and its libraries, which Spark unpacks on each machine of a cluster.

    The machines then need only Spark, and the same operating system and kind of processor as this machine. The command
    prints the options with which `flowctl run` uses the archive.

    \b
    Examples:
      flowctl environment pack
      flowctl environment pack --package-only -o flow.tar.gz
    """
    from derive.cli.console import note
    from derive.spark.environment_archive import pack_environment

    kind = "package" if package_only else "environment"
    target = output or Path(f"flow-{kind}.tar.gz")
    files = pack_environment(target, package_only=package_only)
    note(f"wrote {target}: {counted(files, 'file')}, {target.stat().st_size / 1e6:,.0f} MB")
    note(f"use it with: --conf spark.archives={target}#{kind} --conf {_SETTINGS[kind]}")


_SETTINGS = {
    "environment": "spark.pyspark.python=./environment/bin/python",
    "package": "spark.executorEnv.PYTHONPATH=package",
}
"""The setting with which workers use an unpacked archive, by its kind."""
