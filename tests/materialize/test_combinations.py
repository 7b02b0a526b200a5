"""Materializations together with what else there is: compaction, selectors, several bindings of a source, secrets."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from forked_flowctl import UNFORKED
from postgres_server import PASSWORD
from real_runs import Project, end, postgres, sales, sqlite

from derive.document.clock import format_rfc3339

LOCALLY = ("--local-documents", "1000000")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", sqlite(tmp_path))


def run(project: Project, *arguments: str) -> str:
    code, said = project.called("run", "--until-idle", *LOCALLY, *arguments)
    assert code == 0, said
    return said


def call(project: Project, *arguments: str) -> str:
    code, said = project.called(*arguments)
    assert code == 0, said
    return said


def compact(project: Project) -> None:
    """Forget all history but the last document of each key."""
    call(project, "compact", "--since", format_rfc3339(time.time_ns() // 1000), "--grace", "0s")


@pytest.mark.torture  # test_commit_gaps.py and test_storage_compaction.py hold it without a run
@pytest.mark.parametrize("shards", ["1", "2"])
def test_compaction_does_not_change_stored_rows(project: Project, shards: str) -> None:
    project.ingest(sales(0, 250))
    run(project, "--shards", shards)
    compact(project)
    project.ingest(sales(250, 400), sales(400, 500))
    run(project)
    assert project.is_stored()

    compact(project)
    call(project, "reset", "--task", "shop/view")
    run(project)
    assert project.is_stored()


def test_compaction_during_a_run_does_not_change_rows(project: Project) -> None:
    with project.run() as running:
        for begin in range(0, 900, 300):
            project.ingest(sales(begin, begin + 150), sales(begin + 150, begin + 300))
            compact(project)
        project.wait_until_stored()
        end(running)


def test_rows_lost_by_an_endpoint_are_reported_after_compaction(project: Project, tmp_path: Path) -> None:
    project.ingest(sales(0, 250))
    run(project)
    backup = (tmp_path / "out.db").read_bytes()
    project.ingest(sales(250, 500))
    run(project)
    project.ingest(sales(500, 600))
    compact(project)
    (tmp_path / "out.db").write_bytes(backup)
    code, said = project.called("run", "--until-idle", *LOCALLY)

    assert code == 1
    assert "has lost the rows of" in said
    assert "--task shop/view" in said
    call(project, "reset", "--task", "shop/view")
    run(project)
    assert project.is_stored()


def deletions(project: Project) -> None:
    """Let sales of a customer that is gone be deleted."""
    collection = orjson.loads(orjson.dumps(project.collections["shop/sales"]))
    schema = collection["schema"]
    schema["properties"]["gone"] = {"type": "boolean"}
    schema["if"] = {"required": ["gone"], "properties": {"gone": {"const": True}}}
    schema["then"] = {"reduce": {"strategy": "merge", "delete": True}}
    schema["else"] = {"reduce": schema.pop("reduce")}
    project.collections["shop/sales"] = collection
    project.write()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shards", ["1", "3"])
def test_reset_with_other_shards_deletes_former_rows(project: Project, shards: str) -> None:
    """Customers who came after the split, and were gone after the reset, are in no row."""
    deletions(project)
    project.ingest(sales(0, 50))
    run(project, "--shards", "1")
    call(project, "split", "--task", "shop/view")
    project.ingest(sales(0, 100))
    run(project)
    assert len(project.endpoint.documents()) == 100
    call(project, "reset", "--task", "shop/view")
    call(project, "reset", "--task", "shop/view")
    project.ingest([{"customer": f"c{number}", "sales": 0, "gone": True} for number in range(25, 75)])
    run(project, "--shards", shards)

    assert len(project.endpoint.documents()) == 50
    assert project.is_stored()


def regions(begin: int, end_: int) -> list[dict[str, Any]]:
    return [{**document, "region": f"r{number % 3}"} for number, document in enumerate(sales(begin, end_))]


def by_region(project: Project) -> None:
    """Partition the collection by a region, which is of the key."""
    collection = orjson.loads(orjson.dumps(project.collections["shop/sales"]))
    collection["key"] = ["/region", "/customer"]
    collection["schema"]["required"].append("region")
    collection["schema"]["properties"]["region"] = {"type": "string"}
    collection["projections"] = {"region": {"location": "/region", "partition": True}}
    project.collections["shop/sales"] = collection


def binding(table: str, source: Any = "shop/sales", **other: Any) -> dict[str, Any]:
    return {"resource": {"table": table}, "source": source, **other}


def test_bindings_of_one_source_store_their_own_selections(project: Project) -> None:
    by_region(project)
    only = {"name": "shop/sales", "partitions": {"include": {"region": ["r1"]}}}
    others = {"name": "shop/sales", "partitions": {"exclude": {"region": ["r1"]}}}
    project.bindings = [binding("everything", priority=2), binding("only", only), binding("others", others, priority=1)]
    project.write()
    for begin in (0, 300):
        project.ingest(regions(begin, begin + 200), regions(begin + 200, begin + 300))
        run(project)
    expected = project.expected()
    assert project.endpoint.documents("everything") == expected
    assert project.endpoint.documents("only") == [text for text in expected if '"region":"r1"' in text]
    assert project.endpoint.documents("others") == [text for text in expected if '"region":"r1"' not in text]

    # Reordered, and one of them away for a while: each goes on where it was.
    project.bindings = [project.bindings[2], {**project.bindings[0], "disable": True}, project.bindings[1]]
    project.write()
    project.ingest(regions(600, 700))
    run(project)
    project.bindings = [project.bindings[2], binding("everything"), project.bindings[0]]
    project.write()
    project.ingest(regions(700, 800))
    run(project)
    assert project.endpoint.documents("everything") == project.expected()
    both = sorted(project.endpoint.documents("only") + project.endpoint.documents("others"))
    assert both == project.expected()


def test_not_before_and_not_after_bound_stored_rows(project: Project) -> None:
    def total(table: str) -> int:
        return sum(orjson.loads(text)["sales"] for text in project.endpoint.documents(table))

    now = time.time_ns() // 1000
    border = format_rfc3339(now - 90_000_000)
    project.bindings = [
        binding("before", {"name": "shop/sales", "notAfter": border}),
        binding("after", {"name": "shop/sales", "notBefore": border}),
        binding("sales"),
    ]
    project.write()
    project.ingest(sales(0, 100), sales(100, 150), sales(150, 210), sales(210, 280))
    run(project)
    assert (total("before"), total("after"), total("sales")) == (150, 130, 280)
    project.ingest(sales(0, 20))
    run(project)
    call(project, "reset", "--task", "shop/view")
    run(project)
    assert (total("before"), total("after"), total("sales")) == (150, 150, 300)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("before", [False, True])
def test_delta_updates_cannot_change_for_an_existing_table(tmp_path: Path, *, before: bool) -> None:
    def bindings(*, delta: bool, table: str = "sales") -> list[dict[str, Any]]:
        return [{"source": "shop/sales", "resource": {"table": table, "delta_updates": delta}}]

    project = Project(tmp_path / "project", sqlite(tmp_path), bindings=bindings(delta=before))
    project.ingest(sales(0, 250))
    run(project)
    stored = project.endpoint.documents()
    project.bindings = bindings(delta=not before)
    project.write()
    project.ingest(sales(250, 300))
    code, said = project.called("run", "--until-idle", *LOCALLY)

    assert code == 1
    assert "flow.yaml:" in said
    assert project.endpoint.documents() == stored
    project.bindings = bindings(delta=before)
    project.write()
    run(project)
    totals = [orjson.loads(text)["sales"] for text in project.endpoint.documents()]
    assert sum(totals) == 300
    project.bindings = bindings(delta=not before, table="others")  # another table begins from the beginning
    project.write()
    run(project)
    assert sum(orjson.loads(text)["sales"] for text in project.endpoint.documents("others")) == 300


def test_secrets_are_in_no_command_line_log_status_or_file(tmp_path: Path) -> None:
    shared = postgres()
    config = {**shared.config, "password": "${env:SHOP_PASSWORD}"}
    project = Project(tmp_path / "project", replace(shared, config=config), env={"SHOP_PASSWORD": PASSWORD, **UNFORKED})
    project.ingest(sales(0, 250))
    with project.run() as running:
        project.wait_until_stored()
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert any(b"materialize-postgres" in line for line in lines)
        assert not [line for line in lines if PASSWORD.encode() in line]
        said = end(running)
    project.env["SHOP_PASSWORD"] = wrong = "this one is wrong"
    project.ingest(sales(250, 300))
    code, refused = project.called("run", "--until-idle", *LOCALLY)

    assert code == 1
    assert "password authentication failed" in refused
    reported = [
        said,
        refused,
        *(project.called(*names)[1] for names in (("status",), ("status", "-o", "json"), ("logs",))),
    ]
    for secret in (PASSWORD, wrong):
        assert not [text for text in reported if secret in text]
        assert not [
            path for path in project.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
        ]
