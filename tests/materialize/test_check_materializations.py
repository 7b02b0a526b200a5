"""Checking: what is wrong is an issue wherever a catalog is checked, and what is not there is a note."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import toy_connector
from materializations import AT, binding, config, local, materialization

from derive.materialize.connector import Connectors
from derive.materialize.preparation import check_materializations
from derive.protocol.specs import AddressEndpoint, ConnectorEndpoint, EndpointSpec


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server, address = toy_connector.serve()
    yield address
    server.stop(None).wait()


def checked(endpoint: EndpointSpec, *bindings: Any, disabled: bool = False) -> list[tuple[str, str, int, str | None]]:
    spec = replace(materialization(endpoint, *bindings), disabled=disabled)
    with Connectors() as connectors:
        issues = check_materializations([spec], connectors)
    return [(issue.code, issue.message, issue.position.line, issue.hint) for issue in issues]


def test_valid_materializations_pass_the_check(address: str) -> None:
    assert checked(AddressEndpoint(address, config(), AT)) == []


def test_misspelt_prefix_of_an_image_has_a_hint() -> None:
    [(code, _, _, hint)] = checked(ConnectorEndpoint("materialise-sqlite", config(), AT))

    assert (code, hint) == ("N006", "did you mean 'materialize-sqlite'?")


def test_unknown_image_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "derive.materialize.connector.installed_materialize_connectors", lambda: {"materialize-sqlite": "x:Y"}
    )
    image = "ghcr.io/estuary/materialize-bigquery:v1"

    assert checked(ConnectorEndpoint(image, config(), AT)) == [
        (
            "N006",
            f"'a/view' cannot run: the connector 'materialize-bigquery' of the image '{image}' is not installed",
            2,
            "installed: materialize-sqlite",
        )
    ]


def test_disabled_materializations_are_not_checked() -> None:
    assert checked(AddressEndpoint("127.0.0.1:9", config(), AT), disabled=True) == []


def test_unreachable_connector_is_a_note() -> None:
    [(code, message, line, hint)] = checked(AddressEndpoint("127.0.0.1:9", config(), AT))

    assert (code, line, hint) == ("N007", 2, "a connector has to serve gRPC at 127.0.0.1:9")
    assert message.startswith("'a/view' is not fully checked: the connector at 127.0.0.1:9 has failed (UNAVAILABLE)")


def test_program_that_does_not_start_is_a_note() -> None:
    [(code, message, line, _)] = checked(local(env={"TOY": "fail"}))

    assert (code, line) == ("N007", 2)
    assert message.startswith(
        f"'a/view' is not fully checked: the connector '{sys.executable}' ended before it was ready"
    )


def test_unreachable_endpoint_is_a_note(address: str) -> None:
    [(code, message, line, _)] = checked(AddressEndpoint(address, config(mode="gone", key="s3cret"), AT))

    assert (code, line) == ("N007", 2)
    assert message.endswith("nothing is at a.db, and *** is no help")


def test_an_endpoint_that_refuses_is_an_issue(address: str) -> None:
    endpoint = AddressEndpoint(address, config(mode="refuse", key="s3cret"), AT)

    assert checked(endpoint) == [
        (
            "E711",
            f"'a/view': the connector at {address} has failed (FAILED_PRECONDITION): *** does not open a.db",
            2,
            None,
        )
    ]


def test_check_continues_without_a_secret(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    endpoint = AddressEndpoint(address, config(mode="${env:NOT_SET}", require=5), AT)

    assert checked(endpoint, binding(0, {})) == [
        (
            "N007",
            "'a/view' is not fully checked: the environment variable 'NOT_SET' is not set",
            6,
            "set it in the environment of flowctl, or write '${env:NOT_SET:-…}' with a default",
        ),
        ("E708", "'require' of the configuration must be a string", 7, None),
        ("E709", "the resource needs a property 'table'", 20, None),
    ]


def test_connectors_are_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    begin = Connectors.connect

    def counted(connectors: Connectors, endpoint: EndpointSpec) -> Any:
        connector = begin(connectors, endpoint)
        started.append(connector)
        return connector

    monkeypatch.setattr(Connectors, "connect", counted)
    specs = [materialization(local()), materialization(local(key="another"))]
    with Connectors() as connectors:
        assert check_materializations(specs, connectors) == []

    assert len(started) == 2
    assert len(set(started)) == 1
