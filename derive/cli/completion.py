"""`flowctl completion`: completion of commands, options, and names of a catalog in a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from derive.cli.options import data_folder, open_store

if TYPE_CHECKING:
    from derive.protocol.specs import CatalogSpec
    from derive.storage.store import Store

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that lets a shell complete commands, options, and names of collections and tasks.

    \b
    Examples:
      eval "$(flowctl completion bash)"    # in ~/.bashrc
      eval "$(flowctl completion zsh)"     # in ~/.zshrc, after compinit
      flowctl completion fish > ~/.config/fish/completions/flowctl.fish
    """
    form = get_completion_class(shell)
    assert form is not None
    completion = form(context.find_root().command, {}, "flowctl", "_FLOWCTL_COMPLETE")
    # the script for fish divides a completion at each comma, also at those of its description
    script = completion.source_template.replace('string split ","', 'string split --max 1 ","')
    click.echo(script % completion.source_vars())


def complete_names(command: click.Command) -> None:
    """Let the options and arguments of a command that take names complete them.

    Args:
        command: a command; the commands of a group complete names, too.
    """
    for parameter in command.params:
        names = next((_NAMES[option] for option in parameter.opts if option in _NAMES), None)
        if names:
            setattr(parameter, "shell_complete", _completer(names))  # noqa: B010 - a method that mypy protects
    if isinstance(command, click.Group):
        for member in command.commands.values():
            complete_names(member)


Names = Callable[["CatalogSpec | None", "Store | None"], Iterable[str]]
"""Returns names of a catalog and of the data folder; each is None if it cannot be read."""


def _collections(catalog: CatalogSpec | None, store: Store | None) -> Iterable[str]:
    from derive.protocol.collection import is_internal

    if catalog:
        yield from catalog.collections
    if store:
        yield from (table.name for table in store.tables.all() if not is_internal(table.name))


def _tasks(catalog: CatalogSpec | None, store: Store | None) -> Iterable[str]:
    if catalog:
        yield from (*catalog.derivations, *catalog.materializations)
    if store:
        yield from (shadow.name for shadow in store.shadows.members())


def _materializations(catalog: CatalogSpec | None, store: Store | None) -> Iterable[str]:
    return catalog.materializations if catalog else ()


def _connectors(_catalog: CatalogSpec | None, _store: Store | None) -> Iterable[str]:
    from connectors.kit.connector import installed_materialize_connectors

    return installed_materialize_connectors()


_NAMES: dict[str, Names] = {
    "--collection": _collections,
    "--task": _tasks,
    "connector": _connectors,
    "names": _materializations,
}


def _completer(names: Names) -> Callable[[click.Context, str], list[CompletionItem]]:
    """Return a function that completes names; the function returns nothing if the catalog is wrong."""

    def complete(context: click.Context, incomplete: str) -> list[CompletionItem]:
        from derive.catalog import load_without_tests
        from derive.errors import FlowError

        source = Path(context.params.get("source") or "flow.yaml")
        folder = data_folder(source, context.params.get("data"))
        catalog, known = None, set[str]()
        with suppress(FlowError):
            catalog = load_without_tests(source)
        with suppress(FlowError):
            if folder.is_dir():
                with closing(open_store(folder, reading=True)) as store:
                    known.update(names(None, store))
        known.update(names(catalog, None))
        return [CompletionItem(name) for name in sorted(known) if name.startswith(incomplete)]

    return complete
