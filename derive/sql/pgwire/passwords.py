"""Passwords: the password file of a server, and SCRAM-SHA-256 (RFC 5802, RFC 7677), which does not reveal passwords."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stat
import stringprep
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes
from types import MappingProxyType

from derive.errors import SqlError, UsageError

MECHANISM = "SCRAM-SHA-256"
ROUNDS = 4096
"""Number of hash iterations, PostgreSQL's default."""
_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Verifier:
    """A password verifier; it is no password, so no client can log in with it.

    Attributes:
        salt: salt of the hash.
        rounds: number of hash iterations.
        stored_key: hash of the key that the client proves to have.
        server_key: key with which the server proves that it knows the password.
    """

    salt: bytes
    rounds: int
    stored_key: bytes
    server_key: bytes

    @staticmethod
    def of_password(password: str, salt: bytes | None = None, rounds: int = ROUNDS) -> Verifier:
        """Compute the verifier of a password, with a new salt by default."""
        salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac("sha256", prepared(password), salt, rounds)
        client_key = _mac(salted, b"Client Key")
        return Verifier(salt, rounds, hashlib.sha256(client_key).digest(), _mac(salted, b"Server Key"))

    @staticmethod
    def of_text(text: str) -> Verifier | None:
        """Parse a verifier in PostgreSQL's form, `SCRAM-SHA-256$rounds:salt$stored:server`.

        Return None for other texts.
        """
        try:
            mechanism, salted, keys = text.split("$")
            rounds, salt = salted.split(":")
            stored_key, server_key = keys.split(":")
            verifier = Verifier(_unbase64(salt), int(rounds), _unbase64(stored_key), _unbase64(server_key))
        except (ValueError, binascii.Error):
            return None
        is_whole = mechanism == MECHANISM and len(verifier.stored_key) == len(verifier.server_key) == 32
        return verifier if is_whole and verifier.rounds > 0 else None


class Exchange:
    """The authentication of one client: a challenge, and the proofs of both sides."""

    def __init__(self, verifier: Verifier, nonce: str | None = None) -> None:
        self._verifier = verifier
        self._nonce = nonce or secrets.token_urlsafe(18)
        self._header = ""
        self._bare = ""
        self._challenge = ""

    def challenge(self, first: str) -> str:
        """Return the challenge after the client's first message.

        Raises:
            SqlError: the message is invalid.
        """
        parts = first.split(",", 2)
        if len(parts) < 3 or parts[0] not in ("n", "y") or (parts[1] and not parts[1].startswith("a=")):
            raise _malformed("a client without channel binding is expected")
        self._header, self._bare = f"{parts[0]},{parts[1]},", parts[2]
        nonce = _attribute(self._bare.split(","), "r")
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(self._verifier.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={self._verifier.rounds}"
        return self._challenge

    def proof(self, final: str) -> str | None:
        """Return the server's proof if the client's final message has a correct proof; None otherwise.

        Raises:
            SqlError: the message is invalid.
        """
        unproved, separator, proof = final.rpartition(",p=")
        attributes = unproved.split(",")
        binding = base64.b64encode(self._header.encode()).decode()
        if not separator or _attribute(attributes, "c") != binding or _attribute(attributes, "r") != self._nonce:
            raise _malformed("the final message is not an answer to the challenge")
        try:
            sent = _unbase64(proof)
        except (ValueError, binascii.Error):
            raise _malformed("the proof is not base64") from None
        exchanged = f"{self._bare},{self._challenge},{unproved}".encode()
        signature = _mac(self._verifier.stored_key, exchanged)
        client_key = bytes(a ^ b for a, b in zip(sent, signature, strict=False))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            return None
        return f"v={base64.b64encode(_mac(self._verifier.server_key, exchanged)).decode()}"


def prepared(password: str) -> bytes:
    """Normalize a password by SASLprep (RFC 4013); return a prohibited password unchanged."""
    if password.isascii():
        return password.encode()
    mapped = (" " if stringprep.in_table_c12(char) else char for char in password if not stringprep.in_table_b1(char))
    normal = unicodedata.normalize("NFKC", "".join(mapped))
    return (normal if normal and not any(map(_is_prohibited, normal)) else password).encode()


def _is_prohibited(char: str) -> bool:
    tables = (
        stringprep.in_table_a1,
        stringprep.in_table_c12,
        stringprep.in_table_c21_c22,
        stringprep.in_table_c3,
        stringprep.in_table_c4,
        stringprep.in_table_c5,
        stringprep.in_table_c6,
        stringprep.in_table_c7,
        stringprep.in_table_c8,
        stringprep.in_table_c9,
    )
    return any(table(char) for table in tables)


def _attribute(attributes: list[str], name: str) -> str:
    values = [value[2:] for value in attributes if value.startswith(f"{name}=")]
    if len(values) != 1 or not values[0]:
        raise _malformed(f"a message has no attribute {name}")
    return values[0]


def _malformed(what: str) -> SqlError:
    return SqlError("08P01", f"malformed SCRAM message: {what}")


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


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
        """Return the verifier of a user; for an unknown user, a verifier that no password matches."""
        # the salt is constant for a user, like a real salt
        salt = hmac.digest(self._nobody, user.encode(), "sha256")[:16]
        return self._verifiers.get(user) or Verifier(salt, ROUNDS, token_bytes(32), token_bytes(32))

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all users."""
        return frozenset(self._verifiers)

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
            where = f"{path}:{number}"  # the message must not show the line, which has a password
            named, separator, password = line.partition(":")
            user, own_marks = _marked(named, where)
            if not separator or not user or not password or user in verifiers:
                what = f"names user '{user}' again" if user in verifiers else "names no user and password"
                raise UsageError(f"{where} {what}", hint=FORM)
            verifier = Verifier.of_text(password)
            if verifier is None and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UsageError(f"{where} has a password, but other users may read the file", hint=f"chmod 600 {path}")
            verifiers[user] = verifier or Verifier.of_password(password)
            marks[user] = own_marks
        if not verifiers:
            raise UsageError(f"the password file {path} has no user", hint=FORM)
        return Passwords(verifiers, marks)


def _marked(named: str, where: str) -> tuple[str, frozenset[str]]:
    """Split a user's name from the marks in brackets.

    Raises:
        UsageError: the mark does not exist.
    """
    match = _MARKED.fullmatch(named)
    if match is None:
        return named, frozenset()
    marks = frozenset(mark.strip() for mark in match["marks"].split(","))
    if unknown := sorted(marks - {READS_FILES, CHANGES_REPLICAS}):
        hint = f"there are [{READS_FILES}] and [{CHANGES_REPLICAS}], and both are [{READS_FILES}, {CHANGES_REPLICAS}]"
        raise UsageError(f"{where} marks user '{match['user']}' with '{unknown[0]}'", hint=hint)
    return match["user"], marks
