"""`flowctl init`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from derive.errors import FlowError, UsageError


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
def command(folder: Path) -> None:
    """Write a small working catalog into DIR (by default the current folder), as a start for your own.

    The catalog has a collection of orders, a derivation in SQL, a test, and a few documents to ingest. Existing files
    are never overwritten.

    \b
    Example:
      flowctl init shop && cd shop && flowctl test
    """
    from derive.cli.console import note
    from derive.cli.starter import FILES

    for path in write_files(folder, FILES):
        click.echo(click.format_filename(path))
    steps = [
        "flowctl check",
        "flowctl test",
        "flowctl ingest --collection shop/orders orders.jsonl",
        "flowctl run --until-idle",
        "flowctl collections read --collection shop/customers --reduce",
    ]
    if folder.resolve() != Path.cwd():
        steps.insert(0, f"cd {shlex.quote(str(folder))}")
    note("Next:\n" + "\n".join(f"  {step}" for step in steps))


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write all files into a folder, or none; create the folder if it does not exist.

    Args:
        folder: the folder.
        files: text by file name.

    Returns:
        Paths of the files, in the same order.

    Raises:
        UsageError: the folder is a file, or one of the files exists.
        FlowError: the system refuses to write.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder")
    present = [name for name in files if (folder / name).exists() or (folder / name).is_symlink()]
    if present:
        hint = "name a new folder; nothing was written"
        raise UsageError(f"{folder} already has {', '.join(present)}", hint=hint)
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8", newline="\n") as stream:
                written.append(folder / name)
                stream.write(text)
    except OSError as exc:
        for path in written:
            path.unlink(missing_ok=True)
        raise FlowError(f"cannot write into {folder}: {exc.strerror or exc}") from exc
    return written
