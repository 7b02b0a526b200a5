"""`flowctl verify`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import catalog_options, output_option, stored_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from derive.backup import Finding, Progress

_COLUMNS = ["kind", "path", "collection", "task", "what"]


@click.command()
@catalog_options
@output_option
@click.option("--backup", type=click.Path(path_type=Path, file_okay=False), help="Verify this backup instead.")
@click.option(
    "--accept-older",
    is_flag=True,
    help="Accept a metadata.db that is older than the other files, and lose the entries it lacks.",
)
def command(source: Path, data: Path | None, backup: Path | None, output: str | None, *, accept_older: bool) -> None:
    """Compare each file of a data folder with its checksum, and run the integrity checks of its databases.

    Files that are missing, truncated, changed or damaged are listed, and also unknown files, which are not touched. The
    exit code is 1 if there is any finding. Tasks may run meanwhile.

    \b
    Examples:
      flowctl verify
      flowctl verify --data /elsewhere/.flow -o json
      flowctl verify --backup /backups/tuesday
    """
    from derive.backup import verify_backup
    from derive.cli.console import Progress, note, print_rows
    from derive.errors import UsageError

    if backup is not None and (data is not None or accept_older):
        raise UsageError("--backup cannot be combined with --data or --accept-older")
    with Progress("files") as progress:
        show = lambda count: progress.show("verify", count)  # noqa: E731
        if backup is not None:
            findings = list(verify_backup(backup, show))
        else:
            findings = _verify(stored_folder(source, data), show, accept_older=accept_older)
        progress.stop("verify")
    if findings or output == "table":
        print_rows(_COLUMNS, _rows(findings), output, spare=["collection", "task"])
    counts = {kind: sum(finding.kind == kind for finding in findings) for kind in sorted({f.kind for f in findings})}
    told = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    note(f"{told}" if findings else "nothing is wrong", level="warn" if findings else "info", **counts)
    if findings:
        raise click.exceptions.Exit(1)


def _verify(folder: Path, show: Progress, *, accept_older: bool) -> list[Finding]:
    from derive.backup import Verification
    from derive.cli.console import note
    from derive.errors import UsageError
    from derive.storage.metadata.opening import is_data_folder
    from derive.storage.store import Store

    if not is_data_folder(folder):
        raise UsageError(f"nothing is stored in {folder} yet")
    with closing(Store(folder, reading=not accept_older, accept_older=True)) as store:
        findings = list(Verification(folder, store.garbage.unknown).run(show))
        if accept_older and any(finding.kind == "older" for finding in findings):
            store.accept_metadata()
            note("this metadata.db is now the latest one; files unknown to it are left alone", level="warn")
    return findings


def _rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]
