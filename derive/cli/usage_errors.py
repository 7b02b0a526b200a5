"""Hints for wrong command lines: names without their option, and options before the command.

A module of its own, because only a wrong command line loads it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import click

from derive.errors import suggest

_NAMING = ("--task", "--name", "--collection")
"""Options that name the object of a command."""
_LISTENING = ("--port", "--host", "--bind", "--address")
"""Options of other programs for the address that `--listen` gives."""
_STATEMENT = re.compile(r"No such command ['\"].*[\s;(]")
_NAME = re.compile(r"[\w./@-]+")


def explained(error: click.ClickException, arguments: Sequence[str]) -> click.ClickException:
    """Return an error of click with a hint, if there is one.

    Args:
        error: the error.
        arguments: arguments of the program.
    """
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return error
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error, context, arguments)
    hint = _statement_hint(error, context) or _name_hint(error, context, arguments) or _language_hint(error)
    return click.UsageError(f"{error.format_message().rstrip('.')}. {hint}", context) if hint else error


def _statement_hint(error: click.ClickException, context: click.Context) -> str | None:
    """Return the hint for a statement of SQL without its option; None for other errors."""
    if context.command_path.endswith(" sql") and _STATEMENT.match(error.message):
        return "Write -c before a statement: flowctl sql -c 'SELECT 1'"
    return None


def _unknown_option(
    error: click.NoSuchOption, context: click.Context, arguments: Sequence[str]
) -> click.ClickException:
    """Return the error of an unknown option with likely options only."""
    if context.parent is None and isinstance(context.command, click.Group):
        commands = context.command.list_commands(context)
        command = next((argument for argument in arguments if argument in commands), "COMMAND")
        if not error.possibilities:
            return click.UsageError(
                f"{error.message} Options of a command follow it: flowctl {command} {error.option_name} …", context
            )
    if error.option_name in _LISTENING and any("--listen" in parameter.opts for parameter in context.command.params):
        return click.UsageError(f"{error.message} Did you mean '--listen HOST:PORT'?", context)
    if error.option_name in _NAMING and context.info_name == "status":
        return click.UsageError(f"{error.message} 'flowctl status' lists every task.", context)
    likely = [option for option in error.possibilities or () if suggest(error.option_name[2:], [option[2:]])]
    return click.NoSuchOption(error.option_name, error.message, likely, context)


def _language_hint(error: click.ClickException) -> str | None:
    """Return the hint for a language of derivations without a sample; None for other errors."""
    param = error.param if isinstance(error, click.BadParameter) else None
    if param is None or param.name != "language" or "'typescript'" not in error.message:
        return None
    return "For TypeScript, docs/typescript.md begins with a catalog to copy."


def _name_hint(error: click.ClickException, context: click.Context, arguments: Sequence[str]) -> str | None:
    """Return the hint for one name without its option; None for other errors."""
    options = {option.opts[0]: option.name for option in context.command.params if isinstance(option, click.Option)}
    if isinstance(error, click.MissingParameter):
        named = [option for option in _NAMING if error.param is not None and option in error.param.opts]
    elif error.message.startswith("Got unexpected extra argument"):
        named = [option for option in _NAMING if option in options]
    else:
        return None
    if not named:
        return None
    given, surplus = _parsed(context, arguments)
    if not surplus or not _NAME.fullmatch(surplus[0]) or options[named[0]] in given:
        return None
    if any(isinstance(parameter, click.Argument) for parameter in context.command.params):
        is_name = "/" in surplus[0] and not (Path(surplus[0]).suffix or Path(surplus[0]).exists())
        return f"Write {named[0]} {surplus[0]}." if is_name else None
    if len(surplus) == 2 and "--key" in options and options["--key"] not in given:
        return f"Write {named[0]} {surplus[0]} --key {shlex.quote(surplus[1])}."
    return f"Write {named[0]} {surplus[0]}." if len(surplus) == 1 else None


def _parsed(context: click.Context, arguments: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the names of the options that a command line has, and its arguments that belong to no option."""
    begin = 0
    for name in _path(context):
        begin = arguments.index(name, begin) + 1
    values, surplus, order = context.command.make_parser(context).parse_args(list(arguments[begin:]))
    taken = [values[str(parameter.name)] for parameter in order if isinstance(parameter, click.Argument)]
    several = [value for value in taken if isinstance(value, tuple)]
    return set(values), [*chain.from_iterable(several), *surplus]


def _path(context: click.Context) -> list[str]:
    """Return the names of a command and of its groups, without the program's name."""
    return [*_path(context.parent), str(context.info_name)] if context.parent else []
