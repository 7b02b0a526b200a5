"""The file of who may connect."""

from __future__ import annotations

from pathlib import Path

import pytest

from derive.errors import UsageError
from derive.sql.pgwire.passwords import Passwords, Verifier

VERIFIER = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "passwords"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_passwords_and_verifiers(tmp_path: Path) -> None:
    passwords = Passwords.of_file(write(tmp_path, f"# who\nann:a:b\n\nbob:{VERIFIER}\n"))

    ann = passwords.verifier_of("ann")
    assert ann == Verifier.of_password("a:b", ann.salt)
    assert passwords.verifier_of("bob") == Verifier.of_text(VERIFIER)


def test_who_does_not_exist_is_challenged_alike(tmp_path: Path) -> None:
    passwords = Passwords.of_file(write(tmp_path, "ann:a\n"))
    first, second = passwords.verifier_of("eve"), passwords.verifier_of("eve")

    assert (first.salt, first.rounds) == (second.salt, 4096)
    assert first.salt != passwords.verifier_of("mallory").salt


def test_marks_give_rights(tmp_path: Path) -> None:
    text = f"ann [files]:a\nben[replicas, files]:b\ncas:c [files]\ndan [files]:{VERIFIER}\n"
    passwords = Passwords.of_file(write(tmp_path, text))

    users = ("ann", "ben", "cas", "dan", "eve", "ann [files]")
    assert [user for user in users if passwords.has_mark(user, "files")] == ["ann", "ben", "dan"]
    assert [user for user in users if passwords.has_mark(user, "replicas")] == ["ben"]
    ann = passwords.verifier_of("ann")
    assert ann == Verifier.of_password("a", ann.salt)


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("ann [file]:a\n", 0o600, ":1 marks user 'ann' with 'file'"),
        ("ann []:a\n", 0o600, ":1 marks user 'ann' with ''"),
        ("[files]:a\n", 0o600, ":1 names no user and password"),
        ("ann:a\nann [files]:b\n", 0o600, ":2 names user 'ann' again"),
        ("ann\n", 0o600, ":1 names no user and password"),
        ("ann:\n", 0o600, ":1 names no user and password"),
        ("ann:a\nann:b\n", 0o600, ":2 names user 'ann' again"),
        ("", 0o600, "names no user"),
        ("ann:a\n", 0o644, ":1 has a password, and others may read it"),
    ],
)
def test_files_that_make_no_sense(tmp_path: Path, text: str, mode: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Passwords.of_file(write(tmp_path, text, mode))


def test_verifiers_are_no_secret(tmp_path: Path) -> None:
    assert Passwords.of_file(write(tmp_path, f"bob:{VERIFIER}\n", 0o644))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Passwords.of_file(tmp_path / "none")
