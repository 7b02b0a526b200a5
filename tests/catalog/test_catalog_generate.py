"""Generating: what is written, what is left alone, and what is said of catalogs that have errors. No Deno runs here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from derive.catalog.build import build, check_catalog
from derive.catalog.generate import Changes, plan_changes, write_changes
from derive.catalog.loading import project_root
from derive.errors import FlowError

CATALOG = """\
collections:
  bank/transfers:
    key: [/id]
    schema:
      type: object
      required: [id, sender]
      properties:
        id: { type: integer, title: Number, description: "given by\\nthe bank" }
        sender: { type: [string, "null"] }
        at: { type: string, format: date-time }
        note: {}
        tags: { type: object, properties: { region: { type: string }, "a b": { type: [integer, boolean] } } }
    projections:
      region: { location: /tags/region, partition: true }
  bank/balances:
    key: [/user]
    schema: { type: object, required: [user], properties: { user: { type: string } } }
    derive:
      using: { typescript: { module: code/balances.ts } }
      transforms:
        - { name: from-transfers, source: bank/transfers, shuffle: any }
        - { name: again, source: bank/transfers, shuffle: any }
  bank/copies:
    key: [/id]
    schema: { type: object, required: [id], properties: { id: { type: integer } } }
    derive:
      using: { sqlite: { migrations: [code/one.sql, CREATE TABLE t(a);, code/two.sql] } }
      shuffleKeyTypes: [string, integer]
      transforms:
        - { name: copy, source: bank/transfers, shuffle: { lambda: code/shuffle.sql }, lambda: code/copy.sql }
"""
BROKEN = CATALOG.replace("key: [/user]", "key: [/usr]")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def generate(folder: Path, text: str = CATALOG) -> Changes:
    (folder / "flow.yaml").write_text(text)
    changes = plan_changes(folder / "flow.yaml")
    write_changes(changes)
    return changes


def reported(changes: Changes) -> list[tuple[str, str]]:
    return [(each.outcome, str(each.path.relative_to(changes.root))) for each in changes.files]


def test_types_and_stubs_are_created_once(folder: Path) -> None:
    types = "flow_generated/typescript/bank/balances.ts"
    assert reported(generate(folder)) == [
        ("created", types),
        ("created", "deno.json"),
        ("created", "code/balances.ts"),
        ("created", "code/one.sql"),
        ("created", "code/two.sql"),
        ("created", "code/copy.sql"),
        ("created", "code/shuffle.sql"),
    ]
    assert reported(generate(folder)) == [("unchanged", types), ("unchanged", "deno.json")]


def test_stubs_of_sql_pass_the_check(folder: Path) -> None:
    generate(folder, CATALOG.replace("typescript: { module: code/balances.ts }", "sqlite: {}").replace(
        "shuffle: any }", "shuffle: any, lambda: code/any.sql }"
    ))  # fmt: skip
    assert check_catalog("flow.yaml").issues == ()


def test_a_stub_of_a_lambda_lists_every_parameter(folder: Path) -> None:
    generate(folder)
    assert (
        (folder / "code/copy.sql").read_text()
        == """\
-- Lambda of transform 'copy' of bank/copies: run for each document of bank/transfers.
-- A row that it selects, or returns, is published as a document whose properties are the row's columns.
select
    -- Field at at /at: string (date-time), may be null
    $at,
    -- Key id at /id: integer; Number; given by the bank
    $id,
    -- Field note at /note: anything, may be null
    $note,
    -- Field sender at /sender: string, may be null
    $sender,
    -- Field tags at /tags: object, may be null
    $tags;

-- There are also:
-- $flow_document
--     Field flow_document at the root: object
-- $flow_published_at
--     Field flow_published_at at /_meta/uuid: string (date-time); Flow Publication Time
-- $region
--     Partitioned field region at /tags/region: string, may be null
-- $tags$a_b
--     Field tags/a b at /tags/a b: boolean or integer, may be null
-- $tags$region
--     Field tags/region at /tags/region: string, may be null
"""
    )


def test_a_stub_of_a_shuffle_has_a_column_for_each_component(folder: Path) -> None:
    generate(folder)
    assert (
        (folder / "code/shuffle.sql")
        .read_text()
        .startswith("""\
-- Shuffle of transform 'copy' of bank/copies: where a document of bank/transfers belongs.
-- It selects one row, the shuffle key: [string, integer].
select null, null;

-- There are:
-- $at
--     Field at at /at: string (date-time), may be null
""")
    )


def test_a_stub_of_a_migration_does_nothing_yet(folder: Path) -> None:
    generate(folder)
    assert (
        (folder / "code/two.sql").read_text()
        == """\
-- Migration 3 of bank/copies: run once, in order, before a shard's first document.
-- Never edit a migration that has run: to change its tables, append another migration to the list.
--
-- create table example (
--     id integer primary key not null,
--     name text not null
-- );
"""
    )


def test_a_stub_of_a_module_has_a_method_for_each_transform(folder: Path) -> None:
    generate(folder)
    assert (
        (folder / "code/balances.ts").read_text()
        == """\
import { Document, IDerivation, SourceFromTransfers, SourceAgain } from 'flow/bank/balances.ts';

// Implementation for derivation bank/balances.
export class Derivation extends IDerivation {
    fromTransfers(read: { doc: SourceFromTransfers }): Document[] {
        throw new Error('Not implemented');
    }

    again(read: { doc: SourceAgain }): Document[] {
        throw new Error('Not implemented');
    }
}
"""
    )


def test_generate_never_overwrites_files_of_users(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code/balances.ts").write_text("not even TypeScript")
    (folder / "code/copy.sql").write_text("SELEC $nothing")
    (folder / "deno.json").write_text('{ "imports": 1 }')
    changes = generate(folder)
    assert (folder / "code/balances.ts").read_text() == "not even TypeScript"
    assert (folder / "code/copy.sql").read_text() == "SELEC $nothing"
    assert (folder / "deno.json").read_text() == '{ "imports": 1 }'
    assert [note[-32:] for note in changes.notes] == ['imports": deno.json has no object of imports'[-32:]]
    assert "code/balances.ts" not in [path for _, path in reported(changes)]


def test_generated_types_follow_the_catalog_and_stale_files_are_removed(folder: Path) -> None:
    generate(folder)
    (folder / "flow_generated/typescript/notes.md").write_text("a person's")
    types = folder / "flow_generated/typescript/bank"
    changes = generate(folder, CATALOG.replace('sender: { type: [string, "null"] }', "sender: { type: string }"))
    assert reported(changes)[0] == ("updated", "flow_generated/typescript/bank/balances.ts")
    assert "sender: string;" in (types / "balances.ts").read_text()
    changes = generate(folder, CATALOG.replace("bank/balances:", "bank/accounts:"))
    assert reported(changes) == [
        ("created", "flow_generated/typescript/bank/accounts.ts"),
        ("unchanged", "deno.json"),
        ("removed", "flow_generated/typescript/bank/balances.ts"),
    ]
    sql = CATALOG.replace("typescript: { module: code/balances.ts }", "sqlite: {}").replace(
        "shuffle: any }", "shuffle: any, lambda: code/any.sql }"
    )
    assert ("removed", "flow_generated/typescript/bank/accounts.ts") in reported(generate(folder, sql))
    assert sorted(each.name for each in (folder / "flow_generated/typescript").iterdir()) == ["notes.md"]


def test_generate_reports_other_errors_and_removes_no_file(folder: Path) -> None:
    generate(folder)
    changes = generate(folder, BROKEN)
    assert [(each.code, each.position.line) for each in changes.issues] == [("E303", 16)]
    assert reported(changes) == []
    assert (folder / "flow_generated/typescript/bank/balances.ts").exists()


def test_generate_writes_files_of_valid_transforms_beside_invalid_ones(folder: Path) -> None:
    changes = generate(folder, BROKEN)
    assert [path for _, path in reported(changes)] == [
        "code/one.sql",
        "code/two.sql",
        "code/copy.sql",
        "code/shuffle.sql",
    ]


# A file that is missing, and that no stub is written for.
ELSEWHERE = ["../outside.sql", "/nowhere/outside.sql", "http://127.0.0.1:1/outside.sql", "select;", "no-suffix"]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_stubs_are_written_below_the_root_and_under_names_of_files(folder: Path, name: str) -> None:
    changes = generate(folder, CATALOG.replace("code/copy.sql", name))
    assert [each.code for each in changes.issues] == ["E003"]
    assert not any("outside" in path or path == name for _, path in reported(changes))


FILES = CATALOG.replace("module: code/balances.ts", "files: [code/deno.json, code/mod.ts, code/util.ts]")


def test_missing_files_of_a_module_get_stubs(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code/util.ts").write_text("export {};")
    changes = generate(folder, FILES)
    assert [path for _, path in reported(changes)][:3] == [
        "flow_generated/typescript/bank/balances.ts",
        "code/deno.json",
        "code/mod.ts",
    ]
    assert json.loads((folder / "code/deno.json").read_text()) == {
        "imports": {"flow/": "../flow_generated/typescript/"}
    }
    assert "export class Derivation" in (folder / "code/mod.ts").read_text()
    assert {what for what, _ in reported(generate(folder, FILES))} == {"unchanged"}


def test_generate_reports_missing_editor_settings(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code/util.ts").write_text("export {};")
    (folder / "code/deno.json").write_text('{"imports": {"pad": "npm:left-pad@1.3.0"}} // mine')
    changes = generate(folder, FILES)
    assert "code/deno.json" not in [path for _, path in reported(changes)]
    (note,) = changes.notes
    assert note == (
        'for editors to find the types, add "flow/": "../flow_generated/typescript/" to "imports":'
        " deno.json lacks this name"
    )


# Files that cannot be taken in, and why.
UNFIT = [
    ("[deno.json]", "E018", "'files' is an array of paths, one of them of a module such as 'mod.ts'"),
    ("[]", "E018", "'files' is an array of paths, one of them of a module such as 'mod.ts'"),
    ("mod.ts", "E018", "'files' is an array of paths, one of them of a module such as 'mod.ts'"),
    ("[code/util.ts, ../deno.json]", "E535", "../deno.json is not in the project's folder, ."),
    ("[code/util.ts, /etc/passwd]", "E535", "/etc/passwd is not in the project's folder, ."),
    ("[code/util.ts, missing.json]", "E003", "cannot load missing.json: No such file or directory"),
    (
        "[code/util.ts, code/deno.json]",
        "E018",
        "code/deno.json is not valid: the file must be a JSON object, and its 'imports' a JSON object",
    ),
]


@pytest.mark.parametrize(("files", "code", "message"), UNFIT)
def test_generate_reports_unreadable_files(folder: Path, files: str, code: str, message: str) -> None:
    (folder / "code").mkdir()
    (folder / "code/util.ts").write_text("export {};")
    (folder / "code/deno.json").write_text('{"imports": []}')
    (folder / "flow.yaml").write_text(CATALOG.replace("module: code/balances.ts", f"files: {files}"))
    issues = [each for each in build(folder / "flow.yaml").issues if each.position.line == 19]
    assert [(each.code, each.message) for each in issues] == [(code, message)]


def test_collection_names_never_lead_out_of_the_folder_of_types(folder: Path) -> None:
    changes = generate(folder, CATALOG.replace("bank/balances:", "../../balances:"))
    assert reported(changes)[:2] == [("created", "deno.json"), ("created", "code/balances.ts")]
    assert changes.notes == (
        "no file of types is written for '../../balances': no folder can have the name '.' or '..'",
    )


def test_project_root_is_the_outermost_folder_of_an_unbroken_chain(tmp_path: Path) -> None:
    inner = tmp_path / "a/b/c"
    inner.mkdir(parents=True)
    for each in (tmp_path / "flow.yaml", tmp_path / "a/b/flow.json", inner / "x.flow.yaml"):
        each.write_text("{}")
    assert project_root(inner / "x.flow.yaml") == tmp_path / "a/b"
    (tmp_path / "a/flow.yml").write_text("{}")
    assert project_root(inner / "x.flow.yaml") == tmp_path
    assert project_root(tmp_path / "flow.yaml") == tmp_path


def test_a_catalog_below_the_root_generates_into_the_root(folder: Path) -> None:
    (folder / "flow.yaml").write_text("import: [bank/flow.yaml]")
    (folder / "bank").mkdir()
    changes = generate(folder / "bank")
    assert changes.root == folder
    assert reported(changes)[:3] == [
        ("created", "flow_generated/typescript/bank/balances.ts"),
        ("created", "deno.json"),
        ("created", "bank/code/balances.ts"),
    ]


def test_generate_reports_a_file_in_place_of_a_folder(folder: Path) -> None:
    (folder / "flow_generated").write_text("")
    with pytest.raises(FlowError, match=r"^cannot (read|write) flow_generated/typescript/bank/balances.ts: "):
        generate(folder)


def test_generate_keeps_a_stub_that_another_process_wrote(folder: Path) -> None:
    (folder / "flow.yaml").write_text(CATALOG)
    changes = plan_changes(folder / "flow.yaml")
    (folder / "code").mkdir()
    (folder / "code/balances.ts").write_text("theirs")
    with pytest.raises(FlowError, match=r"^cannot write code/balances.ts: File exists$"):
        write_changes(changes)
    assert (folder / "code/balances.ts").read_text() == "theirs"
