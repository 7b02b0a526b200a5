"""The file of who may connect."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from derive.errors import SqlError, UsageError
from derive.sql.pgwire.passwords import Exchange, Passwords, Verifier, prepared

VERIFIER = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "passwords"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_password_file_takes_passwords_and_verifiers(tmp_path: Path) -> None:
    passwords = Passwords.of_file(write(tmp_path, f"# who\nann:a:b\n\nbob:{VERIFIER}\n"))

    ann = passwords.verifier_of("ann")
    assert ann == Verifier.of_password("a:b", ann.salt)
    assert passwords.verifier_of("bob") == Verifier.of_text(VERIFIER)


def test_unknown_users_are_challenged_as_known_ones(tmp_path: Path) -> None:
    passwords = Passwords.of_file(write(tmp_path, "ann:a\n"))
    first, second = passwords.verifier_of("eve"), passwords.verifier_of("eve")

    assert (first.salt, first.rounds) == (second.salt, 4096)
    assert first.salt != passwords.verifier_of("mallory").salt


def test_marks_of_users_are_read(tmp_path: Path) -> None:
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
        ("", 0o600, "has no user"),
        ("ann:a\n", 0o644, ":1 has a password, but other users may read the file"),
    ],
)
def test_invalid_password_files_are_refused(tmp_path: Path, text: str, mode: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Passwords.of_file(write(tmp_path, text, mode))


def test_password_file_of_verifiers_may_be_readable_by_others(tmp_path: Path) -> None:
    assert Passwords.of_file(write(tmp_path, f"bob:{VERIFIER}\n", 0o644))


def test_missing_password_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Passwords.of_file(tmp_path / "none")


# Proofs of passwords, against the example of RFC 7677 and a verifier that PostgreSQL made.


SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def exchange() -> Exchange:
    return Exchange(Verifier.of_password("pencil", SALT), nonce=NONCE.removeprefix("rOprNGfwEbeRWgbNEkqO"))


def test_exchange_follows_the_example_of_the_rfc() -> None:
    proof = exchange()

    assert proof.challenge(FIRST) == f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert proof.proof(FINAL) == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_wrong_password_has_no_proof() -> None:
    proof = Exchange(Verifier.of_password("pen", SALT), nonce=NONCE.removeprefix("rOprNGfwEbeRWgbNEkqO"))
    proof.challenge(FIRST)

    assert proof.proof(FINAL) is None


@pytest.mark.parametrize(
    "first", ["", "n,,", "p=tls-server-end-point,,n=u,r=a", "x,,n=u,r=a", "n,b,n=u,r=a", "n,,n=u", "n,,r=a,r=b"]
)
def test_invalid_first_messages_are_refused(first: str) -> None:
    with pytest.raises(SqlError, match="malformed SCRAM message"):
        exchange().challenge(first)


@pytest.mark.parametrize(
    "final",
    ["", "c=biws", f"c=eSws,r={NONCE},p=AAAA", "c=biws,r=other,p=AAAA", f"c=biws,r={NONCE},p=?", f"c=biws,r={NONCE}"],
)
def test_invalid_final_messages_are_refused(final: str) -> None:
    proof = exchange()
    proof.challenge(FIRST)

    with pytest.raises(SqlError, match="malformed SCRAM message"):
        proof.proof(final)


def test_short_proof_is_refused() -> None:
    proof = exchange()
    proof.challenge(FIRST)

    assert proof.proof(f"c=biws,r={NONCE},p=AAAA") is None


def test_verifiers_are_written_as_postgresql_does() -> None:
    keys = "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    made = Verifier.of_password("pencil", SALT)

    assert Verifier.of_text(f"SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==${keys}") == made
    for text in (
        "pencil",
        "SCRAM-SHA-256$4096:AA==$AA==:AA==",
        f"SCRAM-SHA-1$4096:AA==${keys}",
        "a$b$c",
        f"SCRAM-SHA-256$0:AA==${keys}",
    ):
        assert Verifier.of_text(text) is None


@pytest.mark.parametrize(
    ("password", "data"),
    [
        ("pencil", b"pencil"),
        ("I\u00adX", b"IX"),
        ("\u00aa", b"a"),
        ("\u2168", b"IX"),
        ("a\u00a0b", b"a b"),
        ("ä\u0007", "ä\u0007".encode()),
    ],
)
def test_passwords_are_normalized(password: str, data: bytes) -> None:
    assert prepared(password) == data
