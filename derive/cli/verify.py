"""`flowctl verify`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import (
    catalog_options,
    catalog_with_shadows,
    limit_options,
    limited_catalog,
    open_store,
    output_option,
    quiet_option,
    settle_metadata,
    stored_folder,
)
from derive.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from derive.backup import Finding, Progress
    from derive.cli.console import Progress as Shown
    from derive.protocol.specs import DerivationSpec, LambdaLimits
    from derive.storage.roles import Readable
    from derive.storage.segments.columns import WrongValue
    from derive.why.audit import Difference

_COLUMNS = ["kind", "path", "collection", "task", "what"]


@click.command()
@catalog_options
@output_option
@click.option("--backup", type=click.Path(path_type=Path, file_okay=False), help="Verify this backup instead.")
@click.option(
    "--accept-older",
    is_flag=True,
    help="Accept metadata that are older than the other files, and lose the entries that they lack.",
)
@click.option(
    "--replay", is_flag=True, help="Derive all documents again, and compare them with the stored ones instead."
)
@click.option(
    "--collection",
    "collections",
    multiple=True,
    help="With --replay, a derived collection; NAME@N is a shadow.  [default: all]",
)
@quiet_option
@limit_options
def command(
    source: Path,
    data: Path | None,
    backup: Path | None,
    output: str | None,
    collections: tuple[str, ...],
    lambda_limits: LambdaLimits,
    *,
    accept_older: bool,
    replay: bool,
) -> None:
    """Compare each file of a data folder with its checksum, and run the integrity checks of its databases.

    Files that are missing, truncated, changed or damaged are listed, and also unknown files, which are not touched. The
    exit code is 1 if there is any finding. Tasks may run meanwhile.

    With --replay, the lambdas of each derivation run again over all its sources, under the definitions that were in
    force, in a temporary folder. Each derived document is compared with the stored document, byte for byte. The columns
    of the stored files are compared with their documents, too. The replay needs the time of a new derivation on one
    core, and constant memory.

    \b
    Examples:
      flowctl verify
      flowctl verify --replay --collection acmeBank/balances
      flowctl verify --data /elsewhere/.flow -o json
      flowctl verify --backup /backups/tuesday
    """
    from derive.backup import verify_backup
    from derive.cli.console import Progress, note, print_rows
    from derive.errors import UsageError

    if backup is not None and (data is not None or accept_older):
        raise UsageError("--backup cannot be combined with --data or --accept-older")
    if replay and (backup is not None or accept_older):
        raise UsageError("--replay cannot be combined with --backup or --accept-older")
    if collections and not replay:
        raise UsageError("--collection needs --replay", hint="all files of a data folder are verified together")
    if replay:
        _replay(source, data, output, collections, lambda_limits)
        return
    with Progress("file") as progress:
        show = partial(progress.show, "verify")
        show(0)
        if backup is not None:
            findings = list(verify_backup(backup, show))
        else:
            findings = _verify(stored_folder(source, data), show, accept_older=accept_older)
        progress.stop("verify")
    if findings or output == "table":
        print_rows(_COLUMNS, _rows(findings), output, spare=["collection", "task"])
    counts = {kind: sum(finding.kind == kind for finding in findings) for kind in sorted({f.kind for f in findings})}
    summary = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    note(f"{summary}" if findings else "nothing is wrong", level="warn" if findings else "info", **counts)
    if findings:
        raise click.exceptions.Exit(1)


def _verify(folder: Path, show: Progress, *, accept_older: bool) -> list[Finding]:
    from derive.backup import Verification
    from derive.cli.console import note
    from derive.errors import UsageError
    from derive.storage.metadata.opening import is_data_folder
    from derive.storage.store import Store

    if not is_data_folder(folder):
        raise UsageError(f"nothing is stored in {folder} yet", hint="name the data folder: --data FOLDER")
    settle_metadata(folder, creates=False)
    with closing(Store(folder, reading=not accept_older, accept_older=True)) as store:
        findings = list(Verification(store).run(show))
        if accept_older and any(finding.kind == "older" for finding in findings):
            store.accept_metadata()
            note("these metadata are now the latest ones; files that they do not name stay", level="warn")
    return findings


def _rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]


_REPLAYED = ["kind", "collection", "key", "at", "stored", "replayed"]


def _replay(
    source: Path, data: Path | None, output: str | None, collections: tuple[str, ...], lambda_limits: LambdaLimits
) -> None:
    """Replay derivations, and print the differences."""
    import signal

    from derive.cli.console import Progress, note, print_rows

    catalog = limited_catalog(source, lambda_limits, with_tests=False)
    names = list(dict.fromkeys(collections)) or list(catalog.derivations)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the folder is removed, as at Ctrl-C
    rows: list[dict[str, Any]] = []
    with Progress() as progress, closing(open_store(stored_folder(source, data), reading=True)) as store:
        catalog = catalog_with_shadows(store, catalog, names)
        for name in names:
            catalog.find_derivation(name)
        for name in names:
            rows += _audited(store, catalog.derivations[name], progress)
    if rows or output == "table":
        print_rows(_REPLAYED, rows, output, spare=["at", "replayed"])
    differing = len({row["collection"] for row in rows})
    collections_differ = f"documents differ in {differing} of {counted(len(names), 'collection')}"
    what = collections_differ if rows else "every stored document is equal to its replay"
    note(what, level="warn" if rows else "info", differing=differing)
    if rows:
        raise click.exceptions.Exit(1)


def _audited(store: Readable, spec: DerivationSpec, progress: Shown) -> list[dict[str, Any]]:
    """Replay one derivation; return its differences as rows."""
    from derive.cli.console import note
    from derive.document.clock import format_rfc3339
    from derive.scratch import scratch_folder
    from derive.why.audit import MOST_DIFFERENCES, audit

    known, replayed = store.collection(spec.name), 0
    sources = [store.collection(source) for source in spec.sources]
    total = sum(source.documents for source in sources if source)

    def count(documents: int) -> None:
        nonlocal replayed
        replayed += documents
        progress.show(spec.name, replayed, total)

    if known is None or not known.segments:
        note(f"nothing is stored in '{spec.name}' yet")
        return []
    with scratch_folder() as scratch:
        progress.show(spec.name, 0, total)
        result = audit(store, spec, scratch, count)
        progress.done(spec.name, result.documents)
    if result.since:
        note(f"documents of '{spec.name}' before {format_rfc3339(result.since)} are compacted, and were not compared")
    for reason in result.reasons:
        note(f"a reason why '{spec.name}' may differ: {reason}", level="warn")
    if len(result.differences) >= MOST_DIFFERENCES:
        note(f"'{spec.name}' was compared up to the {MOST_DIFFERENCES}th difference", level="warn")
    if len(result.wrong_values) >= MOST_DIFFERENCES:
        note(f"columns of '{spec.name}' were compared up to the {MOST_DIFFERENCES}th wrong value", level="warn")
    return [
        *(_difference(spec.name, difference) for difference in result.differences),
        *(_wrong_value(spec.name, value) for value in result.wrong_values),
    ]


def _difference(name: str, difference: Difference) -> dict[str, Any]:
    from derive.document.clock import format_rfc3339
    from derive.document.key import show_key

    row = difference.stored or difference.replayed
    assert row is not None
    return {
        "kind": "differs",
        "collection": name,
        "key": show_key(row.key),
        "at": format_rfc3339(row.clock),
        "stored": difference.stored and difference.stored.text,
        "replayed": difference.replayed and difference.replayed.text,
    }


def _wrong_value(name: str, value: WrongValue) -> dict[str, Any]:
    from derive.document.clock import format_rfc3339
    from derive.document.exact import dump_exact
    from derive.document.key import show_key

    return {
        "kind": "column",
        "collection": name,
        "key": show_key(value.key),
        "at": format_rfc3339(value.clock),
        "stored": f"{value.column}: {dump_exact(value.stored).decode()}",
        "replayed": f"{value.column}: {dump_exact(value.expected).decode()}",
    }
