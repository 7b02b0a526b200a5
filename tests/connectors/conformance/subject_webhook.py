"""Requests to an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from raw_client import Document, Key, key_of
from subject import Subject
from webhook_server import listening

from connectors.materialize_webhook import WebhookConnector


def make(folder: Path, request: pytest.FixtureRequest) -> Subject:
    listener = listening()
    hook = listener.__enter__()
    request.addfinalizer(lambda: listener.__exit__(None, None, None))

    def resource(table: str, delta: bool) -> Any:
        return {"path": table}

    def rows(table: str) -> dict[Key, Document]:
        return {key_of(document): document for document in hook.documents(f"/{table}")}

    wrong: tuple[Any, ...] = (
        {},
        {"address": "ftp://x"},
        {"address": "http://x", "headers": {"X": "a\nb"}},
        {"address": "http://a:b@c"},
    )
    return Subject(
        WebhookConnector(),
        {"address": hook.address},
        resource,
        rows,
        loads=False,
        transactional=False,
        deletes=False,
        applies=False,
        wrong=wrong,
    )
