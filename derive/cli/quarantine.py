"""`flowctl quarantine`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from derive.cli.options import (
    catalog_options,
    catalog_with_shadows,
    open_store,
    output_option,
    quiet_option,
    stored_folder,
    wide_option,
)
from derive.plural import counted

if TYPE_CHECKING:
    from derive.engine.quarantine import Choice
    from derive.protocol.specs import DerivationSpec

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def command() -> None:
    """List, retry and drop documents that were put aside.

    A transform with 'onViolation: quarantine' puts source documents aside that are invalid or make its lambda fail.

    \b
    Examples:
      flowctl quarantine list
      flowctl quarantine retry --task acmeBank/balances
    """


def _choice_options(command: _Command) -> _Command:
    """Add the options that choose documents."""
    for option in (
        click.option("--id", "ids", multiple=True, metavar="ID", help="Only this entry; may be repeated."),
        click.option(
            "--key",
            "keys",
            multiple=True,
            metavar="JSON",
            help="Only this key of the source: a JSON array (repeatable).",
        ),
        click.option("--transform", help="Only documents of this transform."),
    ):
        command = option(command)
    return command


_LISTED = ("id", "task", "transform", "key", "clock", "error")
_SPARE = ("clock", "task", "transform")


@command.command("list")
@catalog_options
@click.option("--task", help="Only documents of this derivation; NAME@N is a shadow.")
@_choice_options
@output_option
@wide_option
@quiet_option
def list_command(
    source: Path,
    data: Path | None,
    task: str | None,
    transform: str | None,
    output: str | None,
    *,
    keys: Sequence[str],
    ids: Sequence[str],
    wide: bool,
) -> None:
    """List the open entries: documents that were put aside, and were neither retried nor dropped.

    JSON has the documents, too. All documents that a derivation has ever put aside are in its quarantine, a collection
    with the name TASK@quarantine.

    \b
    Examples:
      flowctl quarantine list
      flowctl quarantine list --task acmeBank/balances --transform fromTransfers
      flowctl quarantine list --key '[7]' -o json | jq .document
      flowctl collections read --collection acmeBank/balances@quarantine
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import print_rows
    from derive.engine.quarantine import open_entries

    catalog = load_without_tests(source)
    choice = _choice(transform, keys, ids)
    rows: list[dict[str, Any]] = []
    with closing(open_store(stored_folder(source, data), reading=True)) as store:
        catalog = catalog if task is None else catalog_with_shadows(store, catalog, [task])
        specs = list(catalog.derivations.values()) if task is None else [catalog.find_derivation(task)]
        for spec in specs:
            if task is None and transform is not None and transform not in {item.name for item in spec.transforms}:
                continue
            rows += ({"task": spec.name, **entry} for entry in open_entries(store, spec, choice))
    print_rows(_LISTED, rows, output, spare=_SPARE, wide=wide)


@command.command("retry")
@catalog_options
@click.option("--task", required=True, help="The derivation.")
@_choice_options
@output_option
@quiet_option
def retry_command(
    source: Path,
    data: Path | None,
    task: str,
    transform: str | None,
    output: str | None,
    *,
    keys: Sequence[str],
    ids: Sequence[str],
) -> None:
    """Give documents to their transform again, after a correction of the catalog.

    Each document is processed once more, by the next run or by a run at work, as if its source had published it now.
    The results have the present time. A document that fails again is put aside again.

    \b
    Examples:
      flowctl quarantine retry --task acmeBank/balances
      flowctl quarantine retry --task acmeBank/balances \\
        --transform fromTransfers --key '[7]'
      flowctl quarantine retry --task acmeBank/balances --id 0b52f6d4a1c9
    """
    from derive.engine.quarantine import decide

    choice = _choice(transform, keys, ids)
    spec = _derivation(source, task)
    with closing(open_store(stored_folder(source, data))) as store:
        count = decide(store, spec, choice, "retry")
    _report(spec.name, "retried", count, output)


@command.command("drop")
@catalog_options
@click.option("--task", required=True, help="The derivation.")
@_choice_options
@click.option("--all", "is_all", is_flag=True, help="Drop all documents that were put aside.")
@output_option
@quiet_option
def drop_command(
    source: Path,
    data: Path | None,
    task: str,
    transform: str | None,
    output: str | None,
    *,
    keys: Sequence[str],
    ids: Sequence[str],
    is_all: bool,
) -> None:
    """Decide that documents need not be processed.

    Choose documents by --transform, --key or --id, or add --all. The documents stay in the collection TASK@quarantine.

    \b
    Examples:
      flowctl quarantine drop --task acmeBank/balances --key '[7]' --key '[8]'
      flowctl quarantine drop --task acmeBank/balances --all
    """
    from derive.engine.quarantine import decide
    from derive.errors import UsageError

    choice = _choice(transform, keys, ids)
    if not (is_all or transform or keys or ids):
        raise UsageError("choose documents by --transform, --key or --id, or drop all with --all")
    spec = _derivation(source, task)
    with closing(open_store(stored_folder(source, data))) as store:
        count = decide(store, spec, choice, "drop")
    _report(spec.name, "dropped", count, output)


def _derivation(source: Path, task: str) -> DerivationSpec:
    """Return a derivation of the catalog, whose entries are decided about.

    Raises:
        UsageError: the name is unknown, or belongs to a shadow.
    """
    from derive.catalog import load_without_tests
    from derive.errors import UsageError
    from derive.protocol.collection import owner_of_version

    catalog = load_without_tests(source)
    if owner_of_version(task) in catalog.derivations:
        raise UsageError(
            f"documents of the shadow '{task}' are neither retried nor dropped, because a retry would be a document of"
            " one version only",
            hint="decide after the swap; or drop the shadow (flowctl shadow drop), and correct the catalog",
        )
    return catalog.find_derivation(task)


def _choice(transform: str | None, keys: Sequence[str], ids: Sequence[str]) -> Choice:
    """Return the choice that options describe; a key with one component may be written without brackets."""
    from derive.cli.keys import key_values
    from derive.engine.quarantine import Choice

    return Choice(transform, tuple(map(key_values, keys)), tuple(ids))


def _report(task: str, what: str, count: int, output: str | None) -> None:
    """Print the number of documents that were retried or dropped."""
    from derive.cli.console import note, print_rows

    if output == "json":
        print_rows(("task", what), [{"task": task, what: count}], "json")
    else:
        note(f"{task}: {counted(count, 'document')} {what}")
