"""Secrets: what references stand for, what is told if that is not known, and that nobody sees any."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import TaskError
from derive.position import Position
from derive.protocol.materialization import ConnectorEndpoint, EndpointConfig
from derive.protocol.secrets import escaped, hide, hide_in_line, references, reveal, secret_texts

AT = Position("flow.yaml", 7, 3)
PASSWORD = Position("flow.yaml", 9, 15)


def revealed(value: object, url: str = "/catalog/flow.yaml") -> object:
    return reveal(value, url, {"/password": PASSWORD}, AT)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("plain", "plain"),
        ("${env:USER_NAME}", "ann"),
        ("${env:USER_NAME}@${env:HOST}:5432", "ann@db:5432"),
        ("${env:UNSET:-localhost}", "localhost"),
        ("${env:UNSET:-}", ""),
        ("$${env:USER_NAME}", "${env:USER_NAME}"),
        ("$$${env:USER_NAME}", "$${env:USER_NAME}"),
        ("pa$$w0rd${}$1{env:HOST}", "pa$$w0rd${}$1{env:HOST}"),
        ("${HOST}", "${HOST}"),
        (["${env:HOST}", 1, None, {"of": ["${env:HOST}"]}], ["db", 1, None, {"of": ["db"]}]),
    ],
)
def test_environment_references_are_resolved(
    written: object, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_NAME", "ann")
    monkeypatch.setenv("HOST", "db")
    monkeypatch.delenv("UNSET", raising=False)

    assert revealed(written) == expected


def test_revealed_references_are_not_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "${env:HOME}")

    assert revealed("${env:PASSWORD}") == "${env:HOME}"


@pytest.mark.parametrize(
    ("content", "expected"), [("a\n", "a"), ("a\r\n", "a"), ("a", "a"), ("a\n\n", "a\n"), (" ä ", " ä ")]
)
def test_file_reference_omits_the_last_line_break(content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(content.encode())

    assert revealed("${file:password}", f"{tmp_path}/flow.yaml") == expected
    assert revealed(f"${{file:{tmp_path}/password}}") == expected


def test_a_variable_that_is_not_set_is_reported_where_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DB_PASSWORD", raising=False)

    with pytest.raises(TaskError) as caught:
        revealed({"user": "ann", "password": "${env:DB_PASSWORD}"})

    assert caught.value.message == "the environment variable 'DB_PASSWORD' is not set"
    assert caught.value.position == PASSWORD
    assert caught.value.hint == "set it in the environment of flowctl, or write '${env:DB_PASSWORD:-…}' with a default"


def test_unreadable_secret_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    with pytest.raises(TaskError, match="cannot read the secret in .*/absent: No such file or directory"):
        revealed("${file:absent}", f"{tmp_path}/flow.yaml")
    with pytest.raises(TaskError, match=r"cannot read the secret in .*/binary: the file is not UTF-8 text"):
        revealed("${file:binary}", f"{tmp_path}/flow.yaml")
    with pytest.raises(TaskError, match=r"a secret cannot be loaded from an http\(s\) address"):
        revealed("${file:password}", "https://somewhere.example/flow.yaml")


@pytest.mark.parametrize("name", ["/dev/zero", "large"])
def test_oversized_secret_file_is_reported(name: str, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes((1 << 20) + 1))

    with pytest.raises(TaskError, match="it has more than 1 MiB, the limit of a file that a catalog names"):
        revealed(f"${{file:{name}}}", f"{tmp_path}/flow.yaml")


def test_references_of_a_text_are_found() -> None:
    assert references("$${env:A} ${env:B}:${file:c/d.txt} ${E}") == ["${env:B}", "${file:c/d.txt}"]


@pytest.mark.parametrize(
    ("config", "secrets"),
    [
        ({"user": "ann", "password": "hunter2"}, {"hunter2"}),
        ({"credentials": {"user": "ann", "keys": ["k-1"]}}, {"ann", "k-1"}),
        ({"address": "postgres://ann:hunter2@db/x"}, {"hunter2"}),
        ({"dsn": "host=db password='hunter 2' user=ann"}, {"hunter 2"}),
        ({"url": "https://x.example/?user=1&password=hunter2&z=1"}, {"hunter2"}),
        ({"token": "two\nlines"}, {"two\nlines", "two", "lines"}),
        ({"host": "${env:HOST}"}, {"db-host"}),
        ({"dsn": "postgres://ann:${env:HOST}@db"}, {"db-host"}),
        ({"host": "$${env:HOST}"}, set()),
        ({"password": "${env:UNSET}"}, {"${env:UNSET}"}),
        ({"password": "ab", "path": "a.db"}, set()),
        ({"headers": {"Authorization": "Bearer abc", "auth_token": 5}}, {"Bearer abc"}),
    ],
)
def test_secret_texts_are_found(config: object, secrets: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "db-host")
    monkeypatch.delenv("UNSET", raising=False)

    assert secret_texts(config, "/catalog/flow.yaml") == secrets


def test_secrets_are_hidden_in_messages() -> None:
    assert hide("user=ann password=hunter2 or hunter", {"hunter", "hunter2"}) == "user=ann password=*** or ***"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "  config: {user: ann, password: hunter2, database: x}",
            "  config: {user: ann, password: ***    , database: x}",
        ),
        ('{"password":"a, b", "user": "ann"}', '{"password":***   , "user": "ann"}'),
        ("    api_key: 'it''s mine'  # a comment", "    api_key: ***           # a comment"),
        ("  Authorization: Bearer abc", "  Authorization: ***       "),
        ("  pin_token: ab", "  pin_token: **"),
        ("  address: postgres://ann:hunter2@db/x", "  address: postgres://ann:***    @db/x"),
        ("  dsn: host=db password=hunter2 user=ann", "  dsn: host=db password=***     user=ann"),
        # what is none
        ("  password: ${env:DB_PASSWORD}", "  password: ${env:DB_PASSWORD}"),
        ('  password: "${file:secret}"', '  password: "${file:secret}"'),
        ("  password: {type: string}", "  password: {type: string}"),
        ("  tokens: [a, b]", "  tokens: [a, b]"),
        ("  secret: true", "  secret: true"),
        ("  password: |", "  password: |"),
        ("  token: string;", "  token: string;"),
        ("  name: token", "  name: token"),
    ],
)
def test_secrets_are_hidden_in_lines(line: str, shown: str) -> None:
    assert hide_in_line(line) == shown
    assert len(shown) == len(line)


def test_configuration_repr_shows_stars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t0k3n")
    config = EndpointConfig({"host": "${env:TOKEN}", "password": "hunter2"}, "/catalog/flow.yaml", AT)
    endpoint = ConnectorEndpoint("materialize-postgres", config, AT)

    assert f"{config} {config!r}" == "*** ***"
    assert "hunter2" not in repr(endpoint)
    assert config.reveal() == {"host": "t0k3n", "password": "hunter2"}


def test_a_configuration_is_revealed_for_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "${file:x}")
    config = EndpointConfig({"host": "${env:TOKEN}"}, "/catalog/flow.yaml", AT).revealed()
    monkeypatch.delenv("TOKEN")
    moved = pickle.loads(pickle.dumps(config))

    assert repr(moved) == "***"
    assert moved.reveal() == {"host": "${file:x}"}
    assert "${file:x}" in moved.secrets()


@pytest.mark.parametrize(
    ("image", "connector"),
    [
        ("materialize-sqlite", "materialize-sqlite"),
        ("ghcr.io/estuary/materialize-postgres:v1.2", "materialize-postgres"),
        ("localhost:5000/materialize-duckdb", "materialize-duckdb"),
        ("registry.example:443/a/b/materialize-files@sha256:0123", "materialize-files"),
        ("a/b:dev@sha256:0123", "b"),
    ],
)
def test_image_names_a_connector_by_its_last_part(image: str, connector: str) -> None:
    assert ConnectorEndpoint(image, EndpointConfig({}, "", AT), AT).connector == connector


@given(
    st.recursive(
        st.none() | st.text(alphabet="${}env:file-", max_size=12),
        lambda of: st.lists(of) | st.dictionaries(st.text(max_size=3), of),
    )
)
def test_escaped_values_are_revealed_unchanged(value: object) -> None:
    assert revealed(escaped(value)) == value
