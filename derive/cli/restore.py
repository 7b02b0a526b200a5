"""`flowctl restore`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import catalog_options, data_folder


@click.command()
@click.argument("backup", type=click.Path(path_type=Path, file_okay=False, exists=True))
@catalog_options
@click.option("--copy", "copies", is_flag=True, help="Copy files of collections even on the same file system.")
def command(backup: Path, source: Path, data: Path | None, *, copies: bool) -> None:
    """Restore BACKUP into a data folder that is new or empty, and compare every file with its checksum.

    A run over the new folder resumes at the time of the backup. If an
    endpoint is ahead of the backup, its materialization stops with a hint.

    \b
    Examples:
      flowctl restore /backups/tuesday
      flowctl restore /backups/tuesday --data /elsewhere/.flow
    """
    from derive.backup import restore
    from derive.cli.console import Progress, note

    folder = data_folder(source, data)
    with Progress("files") as progress:
        count = restore(backup, folder, copies=copies, progress=lambda count: progress.show("restore", count))
        progress.stop("restore")
    note(f"restored {count:,} files into {folder}", folder=str(folder), files=count)
