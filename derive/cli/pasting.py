"""Commands in hints and notes, with the options of the present command that name its catalog and its data folder.

A hint names a command, such as `flowctl run --until-idle`. A user who has named another catalog or data folder than the
default copies the command, and it would fail or use another folder.
"""

from __future__ import annotations

import re
import shlex

SOURCE, DATA = "--source", "--data"

OPTIONS_OF = {
    **dict.fromkeys(
        [
            *("backup", "check", "compact", "diff", "ingest", "logs", "plan", "preview", "reset", "restore", "run"),
            *("split", "sql", "state", "status", "swap", "test", "ui", "verify", "why", "materialize plan"),
            *("collections drop", "collections list", "collections read", "collections truncate", "metadata copy"),
            *("ingestions list", "ingestions undo", "quarantine drop", "quarantine list", "quarantine retry"),
            *("shadow drop", "sql serve"),
        ],
        (SOURCE, DATA),
    ),
    **dict.fromkeys(["generate", "graph"], (SOURCE,)),
}
"""The options of each command that name a catalog or a data folder."""

_GROUPS = sorted({command.split(" ")[0] for command in OPTIONS_OF if " " in command})
_COMMAND = re.compile(
    rf"(?:^|(?<=: )|(?<=\()|(?<=& )|(?<=with ))flowctl ((?:(?:{'|'.join(_GROUPS)}) )?[a-z][a-z-]*)([^;)&]*)"
)
"""A command to copy; in other places, a text speaks about a command."""

_given: dict[str, str] = {}


def give(option: str, value: str | None) -> None:
    """Record the value of an option of the present command line; None if the option is not given."""
    if value is None:
        _given.pop(option, None)
    else:
        _given[option] = value


def pasteable(text: str) -> str:
    """Return a text whose commands have the recorded options.

    >>> give(DATA, "my data")
    >>> pasteable("derive it: flowctl run --until-idle; or see 'flowctl logs'")
    "derive it: flowctl run --data 'my data' --until-idle; or see 'flowctl logs'"
    >>> give(DATA, None)
    """
    return _COMMAND.sub(_with_options, text) if _given and "flowctl " in text else text


def _with_options(match: re.Match[str]) -> str:
    command, rest = match[1], match[2]
    options = [
        f" {option} {shlex.quote(_given[option])}"
        for option in OPTIONS_OF.get(command, ())
        if option in _given and option not in rest
    ]
    return f"flowctl {command}{''.join(options)}{rest}"
