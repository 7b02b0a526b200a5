"""Secrets: references in a configuration, their values, and their removal from messages.

`${env:NAME}` is an environment variable, `${env:NAME:-text}` is a variable with a default, and `${file:PATH}` is the
content of a file without its last line break. `$${` is the text `${`. All other texts with a dollar are unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from derive.document.pointer import JSON, escape
from derive.errors import TaskError
from derive.position import Position, is_remote, reason_of, resolve, show, too_large

HIDDEN = "***"
"""Replacement of a secret in messages."""

_REFERENCE = re.compile(r"\$\$\{|\$\{(env|file):([^{}]*)\}")
_SECRET_NAME = re.compile(r"(?i)passw|passphrase|secret|token|credential|(api|private|access).?key|(^|_)auth")
_USER_INFO = re.compile(r"://[^/@\s]*:([^/@\s]+)@")
_PASSWORD_PARAMETER = re.compile(r"(?i)(?:^|[\s?&;])(?:password|pwd)\s*=\s*('[^']*'|[^\s&;']+)")
_SECRET_IN_LINE = re.compile(
    r"""(?ix)
    ["']? [\w.-]* (?: passw | passphrase | secret | token | credential | (?:api|private|access).?key | \bauth ) [\w.-]*
    ["']? \s* : \s*
    (?! ["']? \$\{ (?:env|file): | (?:string|integer|number|boolean|object|array|null|any|unknown|true|false) \b )
    ( "(?:[^"\\]|\\.)*" | '(?:[^']|'')*' | [^\s\[{,}'"&*|>!\#][^,}]* )"""
)
_MOST_BYTES = 1 << 20
"""Size limit for a file with a secret, bytes."""

_SHORTEST = 3
"""Shortest text that is hidden; shorter texts are no secrets, and their removal would spoil messages."""


def references(text: str) -> list[str]:
    """Return the references in a text, as written."""
    return [match[0] for match in _REFERENCE.finditer(text) if match[1]]


def reveal(value: JSON, url: str, positions: Mapping[str, Position], position: Position) -> JSON:
    """Return a value with all references resolved.

    Args:
        value: a JSON value whose strings may have references.
        url: URL of its file, the base of relative file names.
        positions: positions of its parts, by JSON pointer.
        position: position of the whole value.

    Raises:
        TaskError: a variable is not set, or a file cannot be read.
    """

    def replaced(value: JSON, pointer: str) -> JSON:
        if isinstance(value, dict):
            return {name: replaced(member, f"{pointer}/{escape(name)}") for name, member in value.items()}
        if isinstance(value, list):
            return [replaced(item, f"{pointer}/{index}") for index, item in enumerate(value)]
        if isinstance(value, str) and "${" in value:
            at = positions.get(pointer, position)
            return _REFERENCE.sub(lambda match: _read(match, url, at), value)
        return value

    return replaced(value, "")


def escaped(value: JSON) -> JSON:
    """Return a value with escaped references; `reveal` converts the result to `value`."""
    if isinstance(value, dict):
        return {name: escaped(member) for name, member in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return value.replace("${", "$${") if isinstance(value, str) else value


def secret_texts(value: JSON, url: str) -> frozenset[str]:
    """Return the texts of a value to hide: values of references, and secrets by name or form."""
    return long_enough(_secrets(value, url, named=False))


def long_enough(texts: Iterable[str]) -> frozenset[str]:
    """Return the texts that are long enough to hide."""
    return frozenset(text for text in texts if len(text) >= _SHORTEST)


def hide(text: str, secrets: Collection[str]) -> str:
    """Return a text with all occurrences of secrets hidden."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def redacted(value: JSON, *, is_secret: bool = False) -> JSON:
    """Return a value for storage: secrets in clear are hidden, and references stay as written.

    Args:
        value: a JSON value whose strings may have references.
        is_secret: whether the name of the value's property marks a secret.

    >>> redacted({"user": "a", "password": "hunter2", "token": "${env:TOKEN}", "url": "db://a:hunter2@host"})
    {'user': 'a', 'password': '***', 'token': '${env:TOKEN}', 'url': 'db://a:***@host'}
    """
    if isinstance(value, dict):
        return {
            name: redacted(member, is_secret=is_secret or bool(_SECRET_NAME.search(name)))
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [redacted(item, is_secret=is_secret) for item in value]
    if isinstance(value, str):
        return _redacted_text(value, is_secret=is_secret)
    return HIDDEN if is_secret and value is not None and not isinstance(value, bool) else value


def _redacted_text(text: str, *, is_secret: bool) -> str:
    def hidden(match: re.Match[str]) -> str:
        begin, end = (place - match.start() for place in match.span(1))
        is_reference = not _REFERENCE.sub("", match[1])
        return match[0] if is_reference else f"{match[0][:begin]}{HIDDEN}{match[0][end:]}"

    if is_secret and _REFERENCE.sub("", text):
        return HIDDEN
    for pattern in (_USER_INFO, _PASSWORD_PARAMETER):
        text = pattern.sub(hidden, text)
    return text


def hide_in_line(line: str) -> str:
    """Return a line of a file with hidden secrets; other text keeps its position.

    A single line has no context, so the name before a value decides whether the value is a secret.

    >>> hide_in_line("password: hunter2, name: a")
    'password: ***    , name: a'
    """

    def hidden(match: re.Match[str]) -> str:
        begin, end = match.span(1)
        masked = HIDDEN.ljust(end - begin)[: end - begin]
        return f"{match.string[match.start() : begin]}{masked}{match.string[end : match.end()]}"

    for pattern in (_SECRET_IN_LINE, _USER_INFO, _PASSWORD_PARAMETER):
        line = pattern.sub(hidden, line)
    return line


def _secrets(value: JSON, url: str, *, named: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _secrets(member, url, named=named or bool(_SECRET_NAME.search(name)))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item, url, named=named)
    elif isinstance(value, str):
        yield from _secrets_of(value, url, named=named)


def _secrets_of(text: str, url: str, *, named: bool) -> Iterator[str]:
    revealed = text
    for match in _REFERENCE.finditer(text):
        try:
            secret = _read(match, url, Position(""))
        except TaskError:
            continue
        if match[1]:
            yield from _forms(secret)
        revealed = revealed.replace(match[0], secret)
    if named:
        yield from _forms(revealed)
    for pattern in (_USER_INFO, _PASSWORD_PARAMETER):
        yield from (match[1].strip("'") for match in pattern.finditer(revealed))


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms of a secret in messages: the whole text, and each of its lines."""
    yield secret
    yield from (line.strip() for line in secret.splitlines())


def _read(match: re.Match[str], url: str, position: Position) -> str:
    """Return the value of a reference."""
    kind, name = match[1], match[2]
    if kind is None:
        return "${"
    if kind == "env":
        variable, has_default, default = name.partition(":-")
        text = os.environ.get(variable)
        if text is None and not has_default:
            hint = f"set it in the environment of flowctl, or write '${{env:{variable}:-…}}' with a default"
            raise TaskError(f"the environment variable '{variable}' is not set", position=position, hint=hint)
        return default if text is None else text
    path = resolve(url, os.path.expanduser(name))
    try:
        if is_remote(path):
            raise OSError("a secret cannot be loaded from an http(s) address")
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise too_large(_MOST_BYTES)
        return content.decode().removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError) as exc:
        reason = reason_of(exc) if isinstance(exc, OSError) else "the file is not UTF-8 text"
        raise TaskError(f"cannot read the secret in {show(path)}: {reason}", position=position) from exc
