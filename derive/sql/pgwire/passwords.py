"""The password file of a server."""

from __future__ import annotations

import hmac
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from secrets import token_bytes
from types import MappingProxyType

from derive.errors import UsageError
from derive.sql.pgwire.scram import ROUNDS, Verifier

FORM = "a line is user:password, or user: and a verifier of PostgreSQL's, SCRAM-SHA-256$4096:salt$key:key"
_MARKED = re.compile(r"(?P<user>.*?)\s*\[(?P<marks>[^\[\]]*)\]")
READS_FILES, CHANGES_REPLICAS = "files", "replicas"
"""Marks: the user may create sources from files of the server, and may create and drop replicas."""


class Passwords:
    """The password verifiers of all users.

    An unknown user gets a challenge like other users, so that a client cannot find out which users exist.
    """

    def __init__(
        self, verifiers: dict[str, Verifier], marks: Mapping[str, frozenset[str]] = MappingProxyType({})
    ) -> None:
        self._verifiers, self._marks = verifiers, marks
        self._nobody = token_bytes(32)

    def verifier_of(self, user: str) -> Verifier:
        """Return the verifier of a user; for an unknown user, one that no password matches."""
        salt = hmac.digest(self._nobody, user.encode(), "sha256")[:16]  # constant for a user, like a real salt
        return self._verifiers.get(user) or Verifier(salt, ROUNDS, token_bytes(32), token_bytes(32))

    def has_mark(self, user: str, mark: str) -> bool:
        """Return whether a user has a mark, which gives a right beyond SQL."""
        return mark in self._marks.get(user, ())

    @staticmethod
    def of_file(path: Path) -> Passwords:
        """Read a password file: one user per line, with optional marks after the name; lines with `#` are comments.

        Raises:
            UsageError: the file cannot be read, is readable by others although it has a password, or has an invalid
                line.
        """
        try:
            text = path.read_text(encoding="utf-8")
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"the password file {path} cannot be read: {exc}") from exc
        verifiers: dict[str, Verifier] = {}
        marks: dict[str, frozenset[str]] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            where = f"{path}:{number}"  # without the line, which has a password
            named, separator, password = line.partition(":")
            user, own_marks = _marked(named, where)
            if not separator or not user or not password or user in verifiers:
                what = f"names user '{user}' again" if user in verifiers else "names no user and password"
                raise UsageError(f"{where} {what}", hint=FORM)
            verifier = Verifier.of_text(password)
            if verifier is None and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UsageError(f"{where} has a password, and others may read it", hint=f"chmod 600 {path}")
            verifiers[user] = verifier or Verifier.of_password(password)
            marks[user] = own_marks
        if not verifiers:
            raise UsageError(f"the password file {path} names no user", hint=FORM)
        return Passwords(verifiers, marks)


def _marked(named: str, where: str) -> tuple[str, frozenset[str]]:
    """Split a user's name from the marks in brackets.

    Raises:
        UsageError: there is no such mark.
    """
    match = _MARKED.fullmatch(named)
    if match is None:
        return named, frozenset()
    marks = frozenset(mark.strip() for mark in match["marks"].split(","))
    if unknown := sorted(marks - {READS_FILES, CHANGES_REPLICAS}):
        hint = f"there are [{READS_FILES}] and [{CHANGES_REPLICAS}], and both are [{READS_FILES}, {CHANGES_REPLICAS}]"
        raise UsageError(f"{where} marks user '{match['user']}' with '{unknown[0]}'", hint=hint)
    return match["user"], marks
