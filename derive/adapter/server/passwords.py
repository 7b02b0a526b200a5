"""The file of who may connect, and with which passwords."""

from __future__ import annotations

import hmac
import stat
from pathlib import Path
from secrets import token_bytes

from derive.adapter.server.scram import ROUNDS, Verifier
from derive.errors import UsageError

FORM = "a line is user:password, or user: and a verifier of PostgreSQL's, SCRAM-SHA-256$4096:salt$key:key"


class Passwords:
    """Verifiers of all users.

    Somebody who is not among them is challenged like everyone else, so that nobody learns who is.
    """

    def __init__(self, verifiers: dict[str, Verifier]) -> None:
        self._verifiers = verifiers
        self._nobody = token_bytes(32)

    def verifier_of(self, user: str) -> Verifier:
        """What a user's proof is held against; for a user that does not exist, nothing holds."""
        salt = hmac.digest(self._nobody, user.encode(), "sha256")[:16]  # the same at every attempt, as a user's is
        return self._verifiers.get(user) or Verifier(salt, ROUNDS, token_bytes(32), token_bytes(32))

    @staticmethod
    def of_file(path: Path) -> Passwords:
        """Read a file: one user a line, and nothing behind a `#` at its beginning.

        Raises:
            UsageError: it cannot be read, others may read passwords in it, or a line makes no sense.
        """
        try:
            text = path.read_text(encoding="utf-8")
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"the password file {path} cannot be read: {exc}") from exc
        verifiers: dict[str, Verifier] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            where = f"{path}:{number}"  # and no excerpt of the line, which has a password
            user, separator, password = line.partition(":")
            if not separator or not user or not password or user in verifiers:
                what = f"names user '{user}' again" if user in verifiers else "names no user and password"
                raise UsageError(f"{where} {what}", hint=FORM)
            verifier = Verifier.of_text(password)
            if verifier is None and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UsageError(f"{where} has a password, and others may read it", hint=f"chmod 600 {path}")
            verifiers[user] = verifier or Verifier.of_password(password)
        if not verifiers:
            raise UsageError(f"the password file {path} names no user", hint=FORM)
        return Passwords(verifiers)
