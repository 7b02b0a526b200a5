"""Where the data lies, and what lambdas may take."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import write_catalog

from derive.cli.main import flowctl
from derive.cli.monitoring import ObservedRun
from derive.cli.options import clock_of, data_folder
from derive.cli.run import _attempt
from derive.engine.run import SilentObserver
from derive.errors import CatalogError, DiskFullError, UsageError
from derive.metrics.monitor import Monitor, Readiness
from derive.spark.session import _choose_python


def test_data_folder_is_beside_the_catalog_by_default() -> None:
    assert data_folder(Path("/catalog/flow.yaml"), None) == Path("/catalog/.flow")
    assert data_folder(Path("/catalog/flow.yaml"), Path("/data")) == Path("/data")


def test_a_relative_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert data_folder(Path("flow.yaml"), None) == tmp_path / ".flow"


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("15m", 900), ("1h", 3_600), ("-7d", 604_800), ("1 hour ago", 3_600)]
)
def test_duration_is_a_time_before_the_present(text: str, seconds: int) -> None:
    before = time.time_ns() // 1_000
    clock = clock_of("--since", text)
    after = time.time_ns() // 1_000

    assert clock is not None
    assert before <= clock + seconds * 1_000_000 <= after


@pytest.mark.parametrize(
    ("text", "clock"),
    [(None, None), ("1970-01-01T00:00:01Z", 1_000_000), ("1970-01-01 00:00:01+00", 1_000_000)],
)
def test_time_of_an_option_is_parsed(text: str | None, clock: int | None) -> None:
    assert clock_of("--since", text) == clock


MODULE = """import { IDerivation } from 'flow/o/out.ts';
export class Derivation extends IDerivation {
    fromIn(read: any): any {
        return [{ id: read.doc.id, home: Deno.env.get('FLOW_TEST_HOME') }];
    }
}
"""
CATALOG = """
collections:
  o/in: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  o/out:
    schema: {type: object, required: [id], properties: {id: {type: integer}, home: {}}}
    key: [/id]
    derive:
      using:
        typescript: {module: out.ts, permissions: {env: [FLOW_TEST_HOME]}}
      transforms: [{name: fromIn, source: o/in, shuffle: any}]
tests:
  o/test:
    - ingest: {collection: o/in, documents: [{id: 1}]}
    - verify: {collection: o/out, documents: [{id: 1, home: there}]}
"""


@pytest.mark.deno
@pytest.mark.parametrize("name", ["run", "test"])
def test_permissions_are_refused_unless_the_command_grants_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_catalog(tmp_path, CATALOG, out__ts=MODULE)

    refused = CliRunner().invoke(flowctl, [name])

    assert isinstance(refused.exception, CatalogError)
    [issue] = refused.exception.issues
    assert str(issue.position) == "flow.yaml:9:51"
    assert issue.message == "the module of 'o/out' asks for permissions: env (FLOW_TEST_HOME)"
    assert issue.hint == "if you trust the module, add --allow-permissions"


@pytest.mark.deno
def test_granted_permissions_are_available_to_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOW_TEST_HOME", "there")
    write_catalog(tmp_path, CATALOG, out__ts=MODULE)

    granted = CliRunner().invoke(flowctl, ["test", "--allow-permissions"])

    assert granted.exit_code == 0, granted.output


@pytest.mark.deno
def test_deno_timeout_option_limits_a_hanging_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = CATALOG.replace(", permissions: {env: [FLOW_TEST_HOME]}", "")
    write_catalog(tmp_path, text, out__ts=MODULE.replace("return", "for (;;); return"))

    hung = CliRunner().invoke(flowctl, ["test", "--deno-timeout", "1"])

    assert hung.exit_code == 1
    assert "transform 'fromIn' of 'o/out' gave no answer within 1 s, so its process was stopped" in hung.output
    assert 'document: {"id":1' in hung.output
    assert "out.ts:3:5" in hung.output


ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT $id, max(i) AS n FROM n"


def test_sqlite_timeout_option_limits_endless_sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = CATALOG.replace("typescript: {module: out.ts, permissions: {env: [FLOW_TEST_HOME]}}", "sqlite: {}")
    write_catalog(tmp_path, text.replace("shuffle: any}", f'shuffle: any, lambda: "{ENDLESS}"}}'))

    endless = CliRunner().invoke(flowctl, ["test", "--sqlite-timeout", "0.1"])

    assert endless.exit_code == 1
    assert "the lambda of transform 'fromIn' failed: it took longer than 0.1 s" in endless.output
    assert 'document: {"id":1' in endless.output
    assert "to raise the limit: --sqlite-timeout SECONDS" in endless.output


# A run that goes on waits for what is transient when it begins, as it does later.


def test_run_starts_once_the_disk_has_space(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[Readiness] = []
    monitor = Monitor("run")
    monkeypatch.setattr(time, "sleep", lambda _: pauses.append(monitor.readiness()))

    def attempt() -> str:
        if len(pauses) < 3:
            raise DiskFullError("no space left on the device while writing x", hint="free some space")
        return "begun"

    observed = ObservedRun(SilentObserver(), monitor=monitor)
    assert _attempt(observed, attempt, is_patient=True) == "begun"
    assert pauses == [Readiness(False, "no space left on the device while writing x")] * 3
    assert capsys.readouterr().err == "error: no space left on the device while writing x\n  = free some space\n"


def test_run_does_not_wait_after_permanent_errors() -> None:
    def attempt() -> str:
        raise UsageError("there is no such task")

    with pytest.raises(UsageError):
        _attempt(ObservedRun(SilentObserver()), attempt, is_patient=True)


def test_a_run_until_idle_does_not_wait() -> None:
    def attempt() -> str:
        raise DiskFullError("no space left on the device while writing x")

    with pytest.raises(DiskFullError):
        _attempt(ObservedRun(SilentObserver()), attempt, is_patient=False)


@pytest.mark.parametrize(
    "options", [["--master", "sc://spark.example.com"], ["--conf", "spark.remote=sc://spark.example.com"]]
)
def test_run_refuses_spark_connect(options: list[str], tmp_path: Path) -> None:
    source = write_catalog(tmp_path, "collections: {}")
    result = CliRunner().invoke(flowctl, ["run", "--source", str(source), *options])

    assert isinstance(result.exception, UsageError)
    assert "flowctl cannot use Spark Connect" in result.exception.message
    assert not (tmp_path / ".flow").exists()


def test_python_of_workers_is_that_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.9")
    _choose_python({})
    assert os.environ["PYSPARK_PYTHON"] == "python3.9"
    _choose_python({"spark.pyspark.python": "./environment/bin/python"})
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"
