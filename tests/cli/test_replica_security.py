"""Instances and servers that know one another by certificates and a secret, as real processes.

127.0.0.2 is this machine as well, and is taken for another one.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from test_replicas import instance, reason_of
from test_sql_serve import refused, serve

HOST = "127.0.0.2"


@dataclass(frozen=True)
class Authority:
    """Signs certificates, which are files beside its own."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        _openssl("req", "-x509", *self._new(self.name), "-out", str(self.certificate), "-days", "2")

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def sign(self, name: str, host: str = HOST) -> list[str]:
        """Options for an end that has a certificate of its own, and trusts those of this authority."""
        request, extensions, signed = (self.folder / f"{name}.{kind}" for kind in ("csr", "ext", "pem"))
        extensions.write_text(f"subjectAltName=IP:{host}")
        _openssl("req", *self._new(name), "-out", str(request))
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key(self.name))),
            *("-CAcreateserial", "-extfile", str(extensions), "-days", "2", "-out", str(signed)),
        )
        options = {"certificate": signed, "key": self._key(name), "authority": self.certificate}
        return [text for option, path in options.items() for text in (f"--tls-{option}", str(path))]

    def _key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def _new(self, name: str) -> list[str]:
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        return [*kind, "-keyout", str(self._key(name)), "-subj", f"/CN={name}"]


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def of_server(options: list[str]) -> list[str]:
    """The options of a server that are those of an instance."""
    return [option.replace("--t", "--compute-t", 1) if option.startswith("--") else option for option in options]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture(scope="module")
def stranger(authority: Authority) -> Authority:
    return Authority(authority.folder, "stranger")


def secret(folder: Path, text: str) -> list[str]:
    path = folder / text
    path.write_text(f"{text}\n")
    return ["--token-file", str(path)]


def test_a_server_uses_instances_that_its_authority_has_signed(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    data = tmp_path / ".flow"
    data.mkdir()
    own = ["--listen", f"{HOST}:0"]
    token = secret(tmp_path, "swordfish")
    with (
        instance(data, *own, *authority.sign("signed"), *token, "--folder", str(tmp_path / "a")) as (signed, told),
        instance(data, *own, *stranger.sign("unknown"), *token, "--folder", str(tmp_path / "b")) as (unknown, _),
        instance(data, *own, *authority.sign("elsewhere", "10.0.0.7"), "--folder", str(tmp_path / "c")) as (moved, _),
        serve(tmp_path, *of_server([*authority.sign("server"), *token]), "--instance", unknown) as served,
        psycopg.connect(served.address, autocommit=True) as connection,
    ):
        assert "CERTIFICATE_VERIFY_FAILED" in reason_of(connection, "CERTIFICATE_VERIFY_FAILED")
        connection.execute(f"CREATE REPLICA signed (ADDRESS '{signed}')")
        connection.execute(f"CREATE REPLICA moved (ADDRESS '{moved}')")
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        connection.execute("SET transaction_isolation = 'strict serializable'")
        connection.execute("INSERT INTO t VALUES (1)")
        assert connection.execute("SELECT n FROM v").fetchall() == [(1,)]
        assert "is connected" in told.readline()
        states = {row[0]: (row[3], row[4]) for row in connection.execute("SHOW REPLICAS").fetchall()}
        assert states.pop("signed") == ("connected", None)
        assert {state for state, _ in states.values()} == {"connecting"}
        assert all(reason for _, reason in states.values())


def test_an_instance_lets_only_servers_in_that_it_knows(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    data = tmp_path / ".flow"
    data.mkdir()
    token = secret(tmp_path, "swordfish")
    known, unknown = authority.sign("one"), stranger.sign("two")
    signed_by_a_stranger = [*unknown[:4], *known[4:]]  # which trusts the instance, and is not trusted
    place = ["--listen", f"{HOST}:0", *authority.sign("instance"), *token]
    with instance(data, *place) as (address, told):
        for options, expected in (
            (token, "failed to connect"),
            ([*signed_by_a_stranger, *token], "failed to connect"),
            ([*known, *secret(tmp_path, "mackerel")], "the token is another one"),
            (known, "the token is another one"),
        ):
            with (
                serve(tmp_path, *of_server(options), "--instance", address) as served,
                psycopg.connect(served.address, autocommit=True) as connection,
            ):
                assert expected in reason_of(connection, expected)
        with (
            serve(tmp_path, *of_server([*known, *token]), "--instance", address) as served,
            psycopg.connect(served.address, autocommit=True) as connection,
        ):
            connection.execute("CREATE TABLE t (a bigint)")
            connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
            connection.execute("SELECT a FROM v")
            assert "(epoch 5) is connected" in told.readline()  # none of those before was let in
    assert refused(tmp_path, "--instance", address)[0] == 2  # nobody would know who is there
