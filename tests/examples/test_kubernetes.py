"""The manifests for Kubernetes: valid, and with options and paths that exist; no cluster is needed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from derive.cli.main import flowctl

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
VERSIONS = ("1.29", "1.33")


def manifests() -> list[dict[str, Any]]:
    return [manifest for file in FILES for manifest in yaml.safe_load_all(file.read_text())]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the description of each pod, also of the template for executors."""
    for manifest in manifests():
        if "template" in manifest.get("spec", {}):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]
        for text in manifest.get("data", {}).values():
            yield manifest["metadata"]["name"], yaml.safe_load(text)["spec"]


def test_manifests_are_valid() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    assert {file.stem for file in FILES} == {"compute", "driver", "ingest", "secrets", "sql"}
    for version in VERSIONS:
        for manifest in manifests():
            validate.validate(manifest, version, strict=True)
    broken = manifests()[0] | {"spek": {}}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, VERSIONS[0], strict=True)


def test_options_of_containers_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("users", "token", "inbox"):
        (tmp_path / name).touch()
    monkeypatch.delenv("FLOW_METADATA", raising=False)
    monkeypatch.setenv("FLOW_DATA", str(tmp_path))
    commands = set()
    for _, pod in pods():
        for container in pod["containers"]:
            command: click.Command = flowctl
            arguments = [
                argument.replace("=/secrets/", f"={tmp_path}/").replace("/inbox", f"{tmp_path}/inbox")
                for argument in container.get("args", ())
            ]
            while arguments and isinstance(command, click.Group):
                name = arguments.pop(0)
                found = command.get_command(click.Context(command), name)
                assert found
                command = found
            if command is not flowctl:
                command.make_context(name, arguments)
                commands.add(name)
    assert commands == {"compute", "ingest", "run", "serve"}


def test_pods_have_what_they_name() -> None:
    """Volumes, secrets, ports of probes and selectors of services are those of the same manifests."""
    secrets = {manifest["metadata"]["name"] for manifest in manifests() if manifest["kind"] == "Secret"}
    apps = {
        manifest["spec"]["template"]["metadata"]["labels"]["app"]
        for manifest in manifests()
        if "template" in manifest.get("spec", {})
    }
    claimed = {"data"}  # of the template for claims
    for name, pod in pods():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        used = {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
        for container in pod["containers"]:
            used |= {source["secretRef"]["name"] for source in container.get("envFrom", ())}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys() | claimed, name
            ports = {port["name"] for port in container.get("ports", ())}
            probes = [
                container[probe] for probe in ("startupProbe", "livenessProbe", "readinessProbe") if probe in container
            ]
            assert {probe["httpGet"]["port"] for probe in probes} <= ports
            assert {probe["httpGet"]["path"] for probe in probes} <= {"/live", "/ready"}
        assert used <= secrets, name
    selected = {manifest["spec"]["selector"]["app"] for manifest in manifests() if manifest["kind"] == "Service"}
    assert selected <= apps


def test_entrypoint_starts_an_executor_as_spark_asks(tmp_path: Path) -> None:
    for name, script in {
        "python": f"echo {tmp_path}",
        "bin/java": 'printf "%s\\n" "$@"',
        "flowctl": 'echo flowctl "$@"',
    }.items():
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    names = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP", "RESOURCE_PROFILE_ID")
    asked = {f"SPARK_{name}": name.lower() for name in (*names, "EXECUTOR_POD_NAME")}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SPARK_EXECUTOR_MEMORY": "2g", "SPARK_HOME": "/opt/spark"}
    environment |= {"SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078", **asked}

    def started(*arguments: str) -> list[str]:
        command = ["bash", str(FOLDER / "entrypoint.sh"), *arguments]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=True)
        return done.stdout.splitlines()

    options = started("executor")
    assert options[:5] == ["-Dspark.driver.port=7078", "-Xms2g", "-Xmx2g", "-cp", "/opt/spark/jars/*"]
    assert dict(zip(options[6::2], options[7::2], strict=True)) == {
        "--driver-url": "driver_url",
        "--executor-id": "executor_id",
        "--cores": "executor_cores",
        "--app-id": "application_id",
        "--hostname": "executor_pod_ip",
        "--resourceProfileId": "resource_profile_id",
        "--podName": "executor_pod_name",
    }
    assert started("run", "--until-idle") == ["flowctl run --until-idle"]
