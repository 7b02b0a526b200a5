"""What the bench compares us with derives the same: its hand-written loop gives what AcmeBank's oracle says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import oracle_acmebank as oracle
import orjson
import pytest
from example_script import import_script
from oracle_acmebank import Document

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def transfers() -> list[Document]:
    """Some that are so dense that credits are under way, and then some over days, so that windows close."""
    generate = import_script("acmebank/generate.py")
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    dense = generate.transfers(500, 7, seed=3, start=begin, every=timedelta(milliseconds=50))
    sparse = generate.transfers(500, 7, seed=4, start=begin + timedelta(hours=1), every=timedelta(minutes=11))
    return [*dense, *({**transfer, "id": transfer["id"] + 500} for transfer in sparse)]


def derived(task: str, documents: list[Document], folder: Path) -> list[Document]:
    lines = folder / "documents.jsonl"
    lines.write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
    command = [sys.executable, "-m", "bench.loop", f"acmeBank/{task}", str(lines), str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    return [orjson.loads(line) for line in (folder / f"{task}.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("task", "key", "expected"),
    [
        ("last-large-send", "sender", oracle.expected_last_large_sends),
        ("first-send", "id", oracle.expected_first_sends),
        ("grouped-transfers", "id", oracle.expected_grouped_transfers),
    ],
)
def test_loop_equals_the_oracle(
    task: str,
    key: str,
    expected: Callable[[list[Document]], dict[object, Document]],
    transfers: list[Document],
    tmp_path: Path,
) -> None:
    assert {document[key]: document for document in derived(task, transfers, tmp_path)} == expected(transfers)


def test_loop_computes_outcomes_and_balances(transfers: list[Document], tmp_path: Path) -> None:
    outcomes = derived("transfer-outcomes", transfers, tmp_path)
    balances = derived("balances", outcomes, tmp_path)

    expected = oracle.expected_outcomes(transfers)
    assert {document["id"]: document for document in outcomes} == expected
    assert {document["user"]: document for document in balances} == oracle.expected_balances(expected)
