"""Configurations and servers that are not as they should be, under real runs: told by `flowctl status`, and mended.

A run goes on meanwhile, and nothing is lost: once what was wrong is mended, the table holds what the collection does.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from patience import wait_until
from postgres_server import PASSWORD, PostgresServer, server
from real_runs import Endpoint, Project, end, postgres, sales

from connectors.materialize_sql.column import literal, quote

ROLE_PASSWORD = "a role's own secret"


@dataclass(frozen=True)
class Fault:
    """Something that is wrong.

    Attributes:
        break_it: makes it so, and says what the endpoint is then.
        words: what has to be told of it.
        mend: what somebody does about it.
    """

    break_it: Callable[[Endpoint], Endpoint]
    words: str
    mend: Callable[[Endpoint], None]


def do(*statements: str) -> None:
    with closing(server().connect()) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def role_of(endpoint: Endpoint) -> str:
    return f"role of {endpoint.config['schema']}"


def as_role(endpoint: Endpoint, *statements: str) -> Endpoint:
    """The endpoint for a role of its own, in a schema that is there."""
    schema, role = endpoint.config["schema"], role_of(endpoint)
    do(f"CREATE SCHEMA {schema}", f"CREATE ROLE {quote(role)} LOGIN PASSWORD {literal(ROLE_PASSWORD)}", *statements)
    return replace(endpoint, config=endpoint.config | {"user": role, "password": ROLE_PASSWORD})


def grant(endpoint: Endpoint) -> None:
    do(f"GRANT ALL ON SCHEMA {endpoint.config['schema']} TO {quote(role_of(endpoint))}")


def with_another_password(endpoint: Endpoint) -> Endpoint:
    changed = as_role(endpoint)
    grant(changed)
    do(f"ALTER ROLE {quote(role_of(endpoint))} PASSWORD 'another'")
    return changed


def with_another_table(endpoint: Endpoint) -> Endpoint:
    schema = endpoint.config["schema"]
    do(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.sales (customer text PRIMARY KEY, sales boolean)")
    return endpoint


def in_another_database(endpoint: Endpoint) -> Endpoint:
    return postgres(database=f"base of {endpoint.config['schema']}")


FAULTS = {
    "wrong password": Fault(
        with_another_password,
        "password authentication failed",
        lambda endpoint: do(f"ALTER ROLE {quote(role_of(endpoint))} PASSWORD {literal(ROLE_PASSWORD)}"),
    ),
    "role without rights": Fault(as_role, "permission denied for schema", grant),
    "no database": Fault(
        in_another_database,
        "does not exist",
        lambda endpoint: do(f"CREATE DATABASE {quote(endpoint.config['database'])}"),
    ),
    "table of other types": Fault(
        with_another_table,
        "the connector no longer accepts the field 'sales'",
        lambda endpoint: do(f"DROP TABLE {endpoint.config['schema']}.sales"),
    ),
}


def status(project: Project) -> str:
    code, said = project.called("status")
    assert code == 0, said
    return said


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FAULTS)
def test_bad_configurations_can_be_corrected_during_a_run(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    project = Project(tmp_path / "project", fault.break_it(postgres()))
    project.ingest(sales(0, 300))
    with project.run() as run:
        wait_until(lambda: fault.words in status(project))
        reported = status(project)
        fault.mend(project.endpoint)
        project.wait_until_stored()
        wait_until(lambda: "failed" not in status(project))  # the endpoint commits before the data folder
        said = end(run)

    assert "failed" in reported
    assert "flow.yaml:" in reported
    _, logged = project.called("logs")
    for text in (reported, said, logged):
        assert PASSWORD not in text
        assert ROLE_PASSWORD not in text
        assert "Traceback" not in text


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server to stop and kill, in a folder that stays open to its user, whatever other tests do."""
    with tempfile.TemporaryDirectory(prefix="derive-postgres-") as name:
        started = PostgresServer(Path(name))
        yield started
        started.stop()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [150, 3000], ids=["few", "many"])
def test_run_resumes_after_a_server_is_killed_in_a_commit(
    own_server: PostgresServer, tmp_path: Path, count: int
) -> None:
    """A lock that somebody else has keeps the commit waiting until the server is killed."""
    project = Project(tmp_path / "project", postgres(own_server))
    project.ingest(sales(0, count, customers=count // 2))
    with project.run() as run:
        project.wait_until_stored()
        schema = project.endpoint.config["schema"]
        with closing(own_server.connect()) as other:
            other.execute(f"BEGIN; UPDATE {schema}.sales SET last = -1 WHERE customer = 'c7'".encode())
            project.ingest(sales(count, 2 * count, customers=count // 2))
            wait_until(lambda: waits_for_a_lock(own_server))
            own_server.stop(signal.SIGQUIT)
        wait_until(lambda: "failed" in status(project))
        own_server.start()
        project.wait_until_stored()
        wait_until(lambda: "failed" not in status(project))
        end(run)


def waits_for_a_lock(server: PostgresServer) -> bool:
    with closing(server.connect()) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return connection.execute(query).fetchall() == [(1,)]


def test_names_of_any_kind_are_materialized(tmp_path: Path) -> None:
    tables = ["select", 'a "quoted" table', "Größe; DROP TABLE x --", "%s {} $1 ?", "'"]
    bindings = [{"source": "shop/sales", "resource": {"table": table}} for table in tables]
    project = Project(tmp_path / "project", postgres(), bindings=bindings)
    properties = project.collections["shop/sales"]["schema"]["properties"]
    properties |= {"order": {"type": "string"}, 'a "b" %s': {"type": "string"}, "$1": {"type": "integer"}}
    project.write()
    odd = {"order": "by", 'a "b" %s': "'; --", "$1": 1}
    for documents in (sales(0, 300), sales(300, 900, customers=600)):
        project.ingest([document | odd for document in documents])
        code, said = project.called("run", "--until-idle", "--local-documents", "1000000")
        assert code == 0, said

    for table in tables:
        stored = project.endpoint.query(f"SELECT CAST(flow_document AS TEXT) FROM {quote(table)}")
        assert sorted(text for (text,) in stored) == project.expected()
        columns = project.endpoint.query(f'SELECT DISTINCT "order", "a ""b"" %s", "$1" FROM {quote(table)}')
        assert columns == [("by", "'; --", 1)]
