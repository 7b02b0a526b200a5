"""Fixtures of the conformance tests: each connector, served, with a raw client."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from served import Client
from subject import Subject

from connectors.kit.servicer import ConnectorServer

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("subject_*.py"))


@pytest.fixture(params=MODULES)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    made: Subject = import_module(request.param).make(tmp_path, request)
    return made


@pytest.fixture
def loading(subject: Subject) -> Subject:
    """A connector that can do without delta updates."""
    if not subject.loads:
        pytest.skip("it has delta updates only")
    return subject


@pytest.fixture
def transactional(subject: Subject) -> Subject:
    """A connector that commits stores and checkpoint together."""
    if not subject.transactional:
        pytest.skip("its endpoint has no transactions")
    return subject


@pytest.fixture
def connector_client(subject: Subject) -> Iterator[Client]:
    server = ConnectorServer(subject.connector, "127.0.0.1:0")
    connector_client = Client(subject, server.address)
    yield connector_client
    connector_client.channel.close()
    server.stop()
