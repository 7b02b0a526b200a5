"""`flowctl backup` and `flowctl restore`."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import click

from derive.cli.options import (
    catalog_options,
    data_folder,
    named_metadata,
    open_store,
    quiet_option,
    stored_folder,
)
from derive.plural import counted


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@catalog_options
@click.option(
    "--base",
    type=click.Path(path_type=Path, file_okay=False),
    help="An earlier backup: files that are unchanged since then are hard-linked and take no space.",
)
@click.option("--copy", "copies", is_flag=True, help="Copy files of collections even on the same file system.")
@quiet_option
def command(folder: Path, source: Path, data: Path | None, base: Path | None, *, copies: bool) -> None:
    """Back up a data folder into FOLDER, which is new or empty. Tasks may run meanwhile.

    All parts of the backup are as of one time: collections, SQL tables and names, states and progress of tasks. Files
    of collections are hard-linked on the same file system, and copied to another one. A task waits while its state is
    copied.

    \b
    Examples:
      flowctl backup /backups/monday
      flowctl backup /backups/tuesday --base /backups/monday
      flowctl restore /backups/tuesday --data restored
    """
    from derive.backup import Options, back_up, require_empty
    from derive.cli.console import Progress, note
    from derive.errors import UsageError
    from derive.storage.metadata.opening import is_data_folder

    root = stored_folder(source, data)
    if not is_data_folder(root):
        raise UsageError(f"nothing is stored in {root} yet", hint="name the data folder: --data FOLDER")
    require_empty(folder)
    with Progress("file") as progress, closing(open_store(root)) as store:
        progress.show("backup", 0)
        done = back_up(store, folder, Options(base, copies, partial(progress.show, "backup")))
        progress.stop("backup")
    note(
        f"backed up to {folder}, as of {done.at}: {counted(done.segments, 'file')} of collections,"
        f" {done.linked:,} linked",
        folder=str(folder),
        at=done.at,
        segments=done.segments,
        linked=done.linked,
        bytes=done.bytes,
    )


@click.command()
@click.argument("backup", type=click.Path(path_type=Path, file_okay=False, exists=True))
@catalog_options
@click.option("--copy", "copies", is_flag=True, help="Copy files of collections even on the same file system.")
@click.option(
    "--segments",
    envvar="FLOW_SEGMENTS",
    metavar="URL",
    help="Where the restored folder keeps its segments, such as s3://bucket/prefix.  [default: in the data folder]",
)
@quiet_option
def restore_command(backup: Path, source: Path, data: Path | None, segments: str | None, *, copies: bool) -> None:
    """Restore BACKUP into a data folder that is new or empty, and compare every file with its checksum.

    A run over the new folder resumes at the time of the backup. If an
    endpoint is ahead of the backup, its materialization stops with a hint.
    With --metadata, the metadata are restored into PostgreSQL, wherever those
    of the backup were.

    \b
    Examples:
      flowctl restore /backups/tuesday
      flowctl restore /backups/tuesday --data /elsewhere/.flow
      flowctl restore /backups/tuesday --data moved --segments s3://bucket/moved
      flowctl restore /backups/tuesday --metadata postgresql://db/tuesday
    """
    from derive.cli.console import Progress, note
    from derive.restore import restore
    from derive.storage.location import ObjectFolder

    folder, location = data_folder(source, data), None if segments is None else ObjectFolder.of(segments)
    with Progress("file") as progress:
        show = partial(progress.show, "restore")
        show(0)
        count = restore(backup, folder, copies=copies, segments=location, place=named_metadata(), progress=show)
        progress.stop("restore")
    note(f"restored {counted(count, 'file')} into {folder}", folder=str(folder), files=count)
