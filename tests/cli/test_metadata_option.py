"""`--metadata`: a data folder whose metadata is in PostgreSQL, used by commands as any other folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import write_catalog
from forked_flowctl import BARE, flowctl
from postgres_server import PASSWORD, server
from psycopg.sql import SQL, Identifier

from derive.storage.metadata.place import place_of

CATALOG = """
collections:
  m/events: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  m/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: m/events, shuffle: any, lambda: SELECT $id;}]}
"""


def test_commands_find_the_metadata_of_a_folder(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    (tmp_path / "events.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    url = server().metadata_url
    ingest = ["ingest", "--data", "data", "--collection", "m/events", "events.jsonl"]

    assert flowctl(tmp_path, *ingest, "--metadata", url)[0] == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "collections",
        "commits",
        "folder-id",
        "metadata.json",
    ]
    named = {**BARE, "FLOW_METADATA": url}
    assert flowctl(tmp_path, "run", "--data", "data", "--until-idle", env=named)[0] == 0
    known = {**BARE, "PGPASSWORD": PASSWORD}  # the folder names the database
    status, out, _ = flowctl(tmp_path, "collections", "list", "--data", "data", "-o", "json", env=known)
    assert status == 0
    assert [json.loads(line)["documents"] for line in out.splitlines()] == [2, 2]
    status, _, err = flowctl(tmp_path, "status", "--data", "data")
    assert status == 1
    assert "no password supplied" in err
    assert PASSWORD not in err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "--data", "local"], "the metadata of {folder}/local is in {folder}/local/metadata.db, and not in"),
        (["status", "--data", "local"], "the metadata of {folder}/local is in {folder}/local/metadata.db, and not in"),
        (["run", "--data", "local"], "the metadata of {folder}/local is in {folder}/local/metadata.db, and not in"),
        (
            ["sql", "--data", "local", "-c", "SELECT 1"],
            "the metadata of {folder}/local is in {folder}/local/metadata.db",
        ),
        (["run", "--data", "new"], "is the metadata of another data folder: its identifier is"),
    ],
)
def test_commands_refuse_other_places(arguments: Sequence[str], message: str, tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    named = {**BARE, "FLOW_METADATA": server().metadata_url}
    (tmp_path / "events.jsonl").write_text('{"id": 1}\n')
    ingest = ["ingest", "--collection", "m/events", "events.jsonl", "--data"]
    assert flowctl(tmp_path, *ingest, "data", env=named)[0] == 0
    assert flowctl(tmp_path, *ingest, "local")[0] == 0

    status, _, err = flowctl(tmp_path, *arguments, env=named)
    assert status != 0
    assert message.format(folder=tmp_path) in err.replace("\n", " ")


@pytest.mark.torture  # test_machines.py
def test_commands_of_several_machines_need_only_urls(tmp_path: Path) -> None:
    """Each machine has a folder of its own, with nothing that another machine needs."""
    write_catalog(tmp_path, CATALOG)
    (tmp_path / "events.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    urls = {**BARE, "FLOW_METADATA": server().metadata_url, "FLOW_DATA": f"file://{tmp_path}/objects"}

    def on_machine(name: str, *arguments: str) -> tuple[int, str]:
        status, out, _ = flowctl(tmp_path, *arguments, env={**urls, "FLOW_WORK": str(tmp_path / name)})
        return status, out

    assert on_machine("one", "ingest", "--collection", "m/events", "events.jsonl")[0] == 0
    assert on_machine("two", "run", "--until-idle")[0] == 0
    read = ["collections", "read", "--collection", "m/copies"]
    assert on_machine("three", *read) == (0, '{"id":1}\n{"id":2}\n')
    shutil.rmtree(tmp_path / "two")
    (tmp_path / "events.jsonl").write_text('{"id": 3}\n')
    assert on_machine("three", "ingest", "--collection", "m/events", "events.jsonl")[0] == 0
    assert on_machine("two", "run", "--until-idle")[0] == 0  # a machine that has lost its disk
    assert on_machine("one", *read)[1].count("\n") == 3
    assert on_machine("one", "verify")[0] == 0
    assert not list(tmp_path.glob("*/*/collections"))
    status, _, err = flowctl(tmp_path, "status", env={**BARE, "FLOW_DATA": urls["FLOW_DATA"]})
    assert (status, "or keep the metadata in PostgreSQL: --metadata" in err.replace("\n", " ")) == (2, True)


def _query_as_reader(folder: Path, environment: dict[str, str]) -> None:
    """Query as a user who may only read the metadata; other statements are errors."""

    def sql(*texts: str) -> tuple[int, str, str]:
        options = [option for text in texts for option in ("-c", text)]
        status, out, err = flowctl(folder, "sql", *options, "--data", "data", env=environment)
        return status, out, " ".join(err.split())

    events, joined = 'SELECT id FROM "m/events"', 'SELECT note, e.id FROM notes JOIN "m/events" AS e USING (id)'
    assert sql(events, "SELECT note FROM notes") == (0, '{"id":1}\n{"note":"a"}\n', "")
    assert sql("BEGIN", events, events, "COMMIT")[:2] == (0, '{"id":1}\n' * 2)
    for text, error in (
        ("INSERT INTO notes VALUES (2, 'b')", "cannot be written: permission denied"),
        ("CREATE TABLE others (id int)", "cannot be written: permission denied"),
        (joined, "the relations of the query have no common time"),
        ("SET transaction_isolation = 'strict serializable'", "this user may only read the metadata"),
    ):
        status, _, err = sql(text, joined)
        assert (status, error in err) == (1, True), err


def test_user_who_may_only_read_uses_commands_that_read(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    (tmp_path / "events.jsonl").write_text('{"id": 1}\n')
    url = server().metadata_url
    place = place_of(url)
    named = {**BARE, "FLOW_METADATA": url}
    assert flowctl(tmp_path, "ingest", "--collection", "m/events", "events.jsonl", "--data", "data", env=named)[0] == 0
    tables = ["-c", "CREATE TABLE notes (id int PRIMARY KEY, note text)", "-c", "INSERT INTO notes VALUES (1, 'a')"]
    assert flowctl(tmp_path, "sql", *tables, "--data", "data", env=named)[0] == 0
    known = (tmp_path / "data/metadata.json").read_text()
    reader, schema = Identifier(f"r{place.schema}"), Identifier(place.schema)
    with server().connect() as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN PASSWORD 'weak'").format(reader))
        reads = {**BARE, "FLOW_METADATA": f"postgresql://r{place.schema}:weak@{url.partition('@')[2]}"}
        status, _, err = flowctl(tmp_path, "status", "--data", "data", env=reads)
        assert (status, f"the user r{place.schema} may not read" in err) == (1, True)
        connection.execute(SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, reader))
        connection.execute(SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(schema, reader))

    status, out, _ = flowctl(tmp_path, "collections", "read", "--collection", "m/events", "--data", "data", env=reads)
    assert (status, out) == (0, '{"id":1}\n')
    for command in (["status"], ["plan"], ["check"], ["collections", "list"]):
        assert flowctl(tmp_path, *command, "--data", "data", env=reads)[0] == 0
    _query_as_reader(tmp_path, reads)
    for command in (["run", "--until-idle"], ["sql", "serve", "--listen", "127.0.0.1:0"], ["compact"]):
        status, _, err = flowctl(tmp_path, *command, "--data", "data", env=reads)
        assert (status, "can only be read, and this command writes" in err.replace("\n", " ")) == (1, True)
    assert (tmp_path / "data/metadata.json").read_text() == known
    with server().connect() as connection:
        connection.execute(SQL("DROP OWNED BY {}; DROP ROLE {}").format(reader, reader))
