"""Connectors are found by what an endpoint says, started once, and told of in a way that shows no secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_connector
from child_processes import children_of
from materializations import AT, COLLECTION, binding, config, local, materialization
from patience import wait_until

from derive.errors import (
    CatalogError,
    DeniedError,
    EndpointError,
    EndpointGoneError,
    FlowError,
    ProtocolError,
    TaskError,
)
from derive.materialize.connector import Connectors, not_installed
from derive.materialize.fields import FieldSelection
from derive.materialize.preparation import PreparedMaterialization, collection_message, prepare
from derive.materialize.process import ConnectorProcess, guarded_command
from derive.position import Position
from derive.protocol.specs import (
    AddressEndpoint,
    ConnectorEndpoint,
    EndpointConfig,
    FieldsSpec,
    LocalEndpoint,
    MaterializationSpec,
)
from derive.protocol.stubs import materialize_pb2 as pb
from derive.schema.projection import project
from derive.schema.shape import infer


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server, address = toy_connector.serve()
    yield address
    server.stop(None).wait()


@pytest.fixture
def connectors() -> Iterator[Connectors]:
    with Connectors() as connectors:
        yield connectors


def prepared(connectors: Connectors, spec: MaterializationSpec) -> PreparedMaterialization:
    return prepare(spec, connectors.connect(spec.endpoint))


def refused(connectors: Connectors, spec: MaterializationSpec) -> list[tuple[str, str, int, str | None]]:
    with pytest.raises(CatalogError) as caught:
        prepared(connectors, spec)
    return [(each.code, each.message, each.position.line, each.hint) for each in caught.value.issues]


def failed(connectors: Connectors, spec: MaterializationSpec) -> FlowError:
    with pytest.raises(FlowError) as caught:
        prepared(connectors, spec)
    return caught.value


def test_program_is_started_once_for_all_bindings(connectors: Connectors) -> None:
    first = connectors.connect(local())

    assert connectors.connect(local(key="other")) is first
    assert connectors.connect(local(env={"A": "1"})) is not first
    assert first.name == f"the connector '{sys.executable}'"
    assert first.schemas() is first.schemas()
    assert first.schemas().endpoint == toy_connector.ENDPOINT
    assert first.schemas().documentation_url == "https://toys.example"


def test_slow_connector_delays_no_other(connectors: Connectors) -> None:
    def start_slowly() -> None:
        with pytest.raises(TaskError):
            connectors.connect(local(env={"TOY": "sleep"}))

    slow = threading.Thread(target=start_slowly)
    slow.start()

    assert connectors.connect(local()).schemas().endpoint == toy_connector.ENDPOINT
    assert slow.is_alive()

    slow.join()


def test_dead_program_is_restarted(connectors: Connectors) -> None:
    spec = materialization(local(mode="die", key="t0ken"))
    before = connectors.connect(spec.endpoint)

    error = failed(connectors, spec)

    assert isinstance(error, EndpointGoneError)
    assert error.message.endswith("has ended (exit code 3):\na toy is ready\nasked for its schemas\ndying with ***")
    assert error.message.startswith("'a/view': the connector '")
    assert error.position == AT
    assert before.has_ended
    assert connectors.connect(spec.endpoint) is not before


def test_unstartable_program_is_reported(connectors: Connectors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOW", "fail: s3cret")

    with pytest.raises(TaskError) as caught:
        connectors.connect(local(env={"TOY": "${env:HOW}"}))

    assert caught.value.position == AT
    assert caught.value.message.endswith("ended before it was ready (exit code 7):\ncannot play\nwith ***")


def test_program_gets_its_folder_and_environment(connectors: Connectors, tmp_path: Path) -> None:
    program = "import os; open('here', 'w').write(os.environ['SECRET']); print('localhost:1', flush=True)"
    env = EndpointConfig({"SECRET": "${file:secret}"}, f"{tmp_path}/flow.yaml", AT)
    (tmp_path / "secret").write_text("t0ken\n")

    connectors.connect(LocalEndpoint((sys.executable, "-c", program), config(), AT, env, str(tmp_path)))

    assert (tmp_path / "here").read_text() == "t0ken"


def test_close_ends_all_programs() -> None:
    with Connectors() as connectors:
        connector = connectors.connect(local())
    assert connector.has_ended


def test_uninstalled_image_is_reported(connectors: Connectors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "derive.materialize.connector.installed_materialize_connectors",
        lambda: {"materialize-sqlite": "x:Y", "mine": "z:Z"},
    )
    endpoint = ConnectorEndpoint("ghcr.io/estuary/materialize-sqlight:v1", config(), AT)

    with pytest.raises(TaskError) as caught:
        connectors.connect(endpoint)

    assert (
        caught.value.message
        == "the connector 'materialize-sqlight' of the image 'ghcr.io/estuary/materialize-sqlight:v1' is not installed"
    )
    assert (caught.value.position, caught.value.hint) == (AT, "did you mean 'materialize-sqlite'?")
    assert not_installed(ConnectorEndpoint("materialize-bigquery", config(), AT)) == (
        "the connector 'materialize-bigquery' of the image 'materialize-bigquery' is not installed",
        "installed: materialize-sqlite, mine",
    )
    assert not_installed(ConnectorEndpoint("a/mine", config(), AT)) is None
    assert not_installed(local()) is None


def test_unreachable_address_is_reported(connectors: Connectors) -> None:
    error = failed(connectors, materialization(AddressEndpoint("127.0.0.1:9", config(), AT)))

    assert isinstance(error, EndpointGoneError)
    assert error.message.startswith("'a/view': the connector at 127.0.0.1:9 has failed (UNAVAILABLE): ")
    assert (error.position, error.hint) == (AT, "a connector has to serve gRPC at 127.0.0.1:9")


def test_a_materialization_is_prepared(connectors: Connectors, address: str) -> None:
    endpoint = AddressEndpoint(address, config(key="s3cret"), AT)
    spec = materialization(
        endpoint, binding(0, {"table": "rows"}), binding(1, {"table": "more", "delta_updates": True})
    )

    ready = prepared(connectors, spec)

    assert [(each.resource_path, each.delta_updates) for each in ready.bindings] == [
        (("rows",), False),
        (("more",), True),
    ]
    assert ready.bindings[0].fields == FieldSelection(("id",), ("flow_published_at", "part", "sum"), "flow_document")
    assert ready.secrets == {"s3cret"}
    assert "s3cret" not in repr(ready)
    assert (
        ready.apply(connectors.connect(endpoint), dry_run=True).description == "would create rows, more in a.db by ***"
    )
    assert ready.apply(connectors.connect(endpoint)).description == "created rows, more in a.db by ***"


def test_messages_have_all_parts_for_other_connectors(connectors: Connectors, address: str) -> None:
    fields = FieldsSpec(AT, include={"sum": {"digits": 2}})
    spec = materialization(AddressEndpoint(address, config(), AT), binding(0, {"table": "rows"}, fields))

    message = prepared(connectors, spec).message

    assert (message.materialization, message.endpoint_spec_json) == ("a/view", '{"path":"a.db"}')
    [bound] = message.bindings
    assert (bound.resource_spec_json, list(bound.resource_path)) == ('{"table":"rows"}', ["rows"])
    assert bound.collection.schema_uri == "flow://collection/a/source/schema"
    assert (list(bound.collection.key_ptrs), bound.collection.uuid_ptr) == (["/id"], "/_meta/uuid")
    assert list(bound.collection.partition_fields) == ["part"]
    projections = {projection.field: projection for projection in bound.collection.projections}
    assert list(projections) == ["flow_document", "flow_published_at", "id", "part", "sum", "who"]
    assert (
        projections["id"].is_primary_key,
        list(projections["id"].inference.types),
        projections["id"].inference.must_exist,
    ) == (True, ["integer"], True)
    assert (projections["part"].is_partition_key, projections["part"].user_provided, projections["part"].ptr) == (
        True,
        True,
        "/who",
    )
    assert list(projections["sum"].inference.types) == ["number"]
    assert projections["flow_published_at"].inference.string.format == "date-time"
    assert dict(bound.field_selection.field_config_json) == {"sum": '{"digits":2}'}
    shuffle = bound.shuffle
    assert (shuffle.group_name, shuffle.source_collection) == ("materialize/a/view/a/source -> 0", "a/source")
    assert (list(shuffle.shuffle_key_ptr), shuffle.uses_source_key, shuffle.uses_source_schema, shuffle.priority) == (
        ["/id"],
        True,
        True,
        3,
    )
    assert shuffle.source_schema_uri == bound.collection.schema_uri


def test_schema_message_keeps_large_numbers_and_any_characters() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer", "maximum": 2**70, "title": "№ \u0000 😀"}}}
    shape = infer(schema)
    spec = replace(COLLECTION, read_schema=schema, projections=project(shape, ("/id",), {}))

    message = collection_message(spec)

    assert json.loads(message.schema_json) == schema
    assert pb.ValidateRequest.FromString(pb.ValidateRequest(bindings=[{"collection": message}]).SerializeToString())
    assert {each.field: each.inference.title for each in message.projections}["id"] == "№ \u0000 😀"


def test_version_changes_with_every_edit_except_secrets(connectors: Connectors, address: str) -> None:
    def version(resource: Any = None, **values: Any) -> str:
        spec = materialization(
            AddressEndpoint(address, config(**values), AT), binding(0, resource or {"table": "rows"})
        )
        return prepared(connectors, spec).version

    first = version(key="s3cret")

    assert version(key="an0ther") == first == version(key="s3cret")
    assert len({first, version(key="s3cret", path="b.db"), version({"table": "other"}, key="s3cret"), version()}) == 4


def test_configuration_is_checked_by_the_connectors_schema(connectors: Connectors, address: str) -> None:
    spec = materialization(
        AddressEndpoint(address, config(path="A DB", pth="x", key=5, mode="play"), AT), binding(0, {"tabel": "x"})
    )

    issues = refused(connectors, spec)

    assert sorted(issues) == [
        ("E708", "'key' of the configuration must be a string", 7, None),
        (
            "E708",
            '\'mode\' of the configuration is refused by the connector\'s schema: *** is not one of "", "refuse" or 5 other candidates',
            8,
            None,
        ),
        (
            "E708",
            "'path' of the configuration is refused by the connector's schema: *** does not match \"^[a-z.]+$\"",
            5,
            None,
        ),
        ("E708", "the configuration has no property 'pth'", 6, "did you mean 'path'?"),
        ("E709", "the resource has no property 'tabel'", 20, "did you mean 'table'?"),
    ]


def test_fields_refused_by_the_connector_are_issues(connectors: Connectors, address: str) -> None:
    fields = FieldsSpec(AT, include={"who": {}}, positions={"who": Position("flow.yaml", 31, 5)})
    spec = materialization(AddressEndpoint(address, config(mode="forbid"), AT), binding(0, {"table": "rows"}, fields))

    assert refused(connectors, spec) == [
        ("E710", "the field 'who' is selected, but the connector refuses it: nobody is to be known", 31, None)
    ]


def test_bindings_of_one_resource_are_issues(connectors: Connectors, address: str) -> None:
    spec = materialization(
        AddressEndpoint(address, config(mode="same"), AT), binding(0, {"table": "a"}), binding(1, {"table": "b"})
    )

    assert refused(connectors, spec) == [
        ("E703", "'same' is already the resource of another binding, at flow.yaml:20:9", 21, None)
    ]


def test_connector_messages_show_no_secrets(connectors: Connectors, address: str) -> None:
    error = failed(connectors, materialization(AddressEndpoint(address, config(mode="refuse", key="s3cret"), AT)))

    assert type(error) is EndpointError
    name = f"the connector at {address}"
    assert error.message == f"'a/view': {name} has failed (FAILED_PRECONDITION): *** does not open a.db"

    assert "s3cret" not in "".join(traceback.format_exception(error))

    denied = materialization(AddressEndpoint(address, config(key="s3cret"), AT))
    ready = prepared(connectors, denied)
    ready.message.endpoint_spec_json = '{"path": "a.db", "key": "s3cret", "mode": "refuse"}'
    with pytest.raises(DeniedError, match=r"PERMISSION_DENIED\): \*\*\* may not"):
        ready.apply(connectors.connect(denied.endpoint))


def test_nonsensical_answers_are_reported(connectors: Connectors, address: str) -> None:
    error = failed(connectors, materialization(AddressEndpoint(address, config(mode="few"), AT)))

    assert isinstance(error, ProtocolError)
    assert error.message == f"'a/view': the connector at {address} has validated 0 of 1 binding"


def test_missing_secret_is_reported(connectors: Connectors, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    error = failed(connectors, materialization(AddressEndpoint(address, config(key="${env:NOT_SET}"), AT)))

    assert error.message == "the environment variable 'NOT_SET' is not set"
    assert error.position == Position("flow.yaml", 6, 9)


def test_encrypted_configuration_is_reported(connectors: Connectors, address: str) -> None:
    error = failed(connectors, materialization(AddressEndpoint(address, config(sops={"mac": "x"}), AT)))

    assert error.message == "the configuration is encrypted by sops, which is not supported"


# Processes of connectors: they are known when they are ready, told of when they fail, and end with whoever began them.


TOY = guarded_command([sys.executable, toy_connector.__file__])
WAITER = [sys.executable, "-c", "import sys; print('localhost:1', flush=True); sys.stdin.read()"]

FORKS = """
import os

from connectors.kit.servicer import ConnectorServer
from connectors.materialize_sqlite import MaterializeSqlite
from derive.protocol.driver import DriverClient, open_channel
from derive.protocol.stubs import materialize_pb2 as pb

server = ConnectorServer(MaterializeSqlite(), "127.0.0.1:0")
DriverClient(open_channel(server.address)).spec(pb.SpecRequest(), timeout=300)
child = os.fork()
if child == 0:
    os._exit(len(os.listdir("/proc/self/task")))
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Uses gRPC, and ends with the number of threads that a child process has after it was forked."""


def start(command: list[str], seconds: float = 30.0, **env: str) -> ConnectorProcess:
    return ConnectorProcess("the toy", command, "/", {**os.environ, **env}, seconds=seconds)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_connector_process_prints_its_address() -> None:
    process = start(TOY)

    assert process.address.startswith("127.0.0.1:")
    assert process.ended is None
    assert process.output == "a toy is ready"
    assert process.death() is None
    process.close()
    assert process.ended is not None


def test_connector_process_shares_the_session_and_not_the_process_group() -> None:
    process = start(WAITER)
    (child,) = [child for child, command in children_of(os.getpid()).items() if "sys.stdin.read()" in " ".join(command)]

    assert os.getsid(child) == os.getsid(0)
    assert os.getpgid(child) == child
    process.close()


def test_connector_that_ends_before_ready_is_reported_with_its_output() -> None:
    with pytest.raises(TaskError) as caught:
        start(TOY, TOY="fail")

    assert caught.value.message == "the toy ended before it was ready (exit code 7):\ncannot play\nwith fail"


def test_connector_that_is_never_ready_is_reported_with_its_output() -> None:
    with pytest.raises(TaskError) as caught:
        start(TOY, 2.5, TOY="slow")

    assert caught.value.message == "the toy did not print its address within 2.5 s:\nstill thinking"


def test_missing_program_is_reported() -> None:
    with pytest.raises(TaskError, match="the toy cannot be started: No such file or directory"):
        start(["/no/such/program"])
    with pytest.raises(TaskError, match=r"exit code 127\):\ncannot run /no/such/program: No such file or directory"):
        start(guarded_command(["/no/such/program"]))


def test_error_of_a_connector_has_the_last_lines_of_output() -> None:
    noise = "import sys\nfor n in range(30): print('line', n, 'x' * 1000, file=sys.stderr)\nsys.exit(1)"

    with pytest.raises(TaskError) as caught:
        start([sys.executable, "-c", noise])

    lines = caught.value.message.split("\n")
    assert len(lines) == 21
    assert lines[1].startswith("line 10 xxx")
    assert max(map(len, lines)) == 500


def test_guarded_program_ends_with_its_guard_and_reports_its_exit_code() -> None:
    program = "import sys, time; print('localhost:1', flush=True); time.sleep(0.3); print('enough', file=sys.stderr); sys.exit(5)"
    process = start(guarded_command([sys.executable, "-c", program]))
    wait_until(lambda: process.ended is not None)

    assert process.death() == "the toy has ended (exit code 5):\nenough"
    process.close()


def test_program_that_ignores_its_input_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("derive.materialize.process._GRACE_SECONDS", 0.2)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('localhost:1', flush=True); time.sleep(600)"
    process = start([sys.executable, "-c", deaf])

    process.close()

    assert process.ended == -signal.SIGKILL


OWNER = """\
import os, sys, time
from derive.materialize.process import ConnectorProcess, guarded_command
program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); print('localhost:1', flush=True); time.sleep(600)"
ConnectorProcess("it", guarded_command([sys.executable, "-c", program, sys.argv[1]]), "/", dict(os.environ))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_connector_process_ends_with_its_parent(how: signal.Signals, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(pid_file)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"started\n"
    program = int(pid_file.read_text())
    assert runs(program)

    owner.send_signal(how)
    owner.wait()
    owner.stdout.close()

    wait_until(lambda: not runs(program))


def test_no_program_outlives_its_guard(tmp_path: Path) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); print('localhost:1', flush=True); time.sleep(600)"
    pid_file = tmp_path / "pid"
    process = start(guarded_command([sys.executable, "-c", program, str(pid_file)]))
    pid = int(pid_file.read_text())
    guard = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

    os.kill(guard, signal.SIGKILL)

    wait_until(lambda: not runs(pid))
    process.close()


def test_start_of_an_unneeded_connector_is_not_awaited() -> None:
    asked = iter((True, False))
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with pytest.raises(TaskError, match="did not print its address"):
        ConnectorProcess("the toy", silent, "/", os.environ, seconds=600, should_wait=lambda: next(asked))


def test_forked_process_has_no_grpc_threads() -> None:
    """Threads would abort it where it closes descriptors before it starts another program, as PySpark starts Java."""
    env = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}

    assert subprocess.run([sys.executable, "-c", FORKS], env=env, check=False).returncode == 1
