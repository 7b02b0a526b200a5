"""`flowctl generate` and `flowctl json-schema`, from outside."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from forked_flowctl import BARE, flowctl
from jsonschema import Draft202012Validator
from local_wheels import offline

from connectors.derive_typescript.author_files import generate_interfaces
from connectors.derive_typescript.runtime.command import deno, environment
from derive.catalog import load
from derive.catalog.language.yaml import parse_yaml
from derive.cli.main import flowctl as commands

CATALOG = """\
collections:
  a/source:
    schema: {type: object, properties: {id: {type: string}}, required: [id]}
    key: [/id]
  a/derived:
    schema: {type: object, properties: {id: {type: string}}, required: [id]}
    key: [/id]
    derive:
      using: {typescript: {module: derived.ts}}
      transforms: [{name: fromSource, source: a/source, shuffle: any}]
"""
TYPES = "flow_generated/typescript/a/derived.ts"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    return tmp_path


def generate(folder: Path, *arguments: str) -> tuple[int, list[tuple[str, str]], str]:
    """Exit code, (what, file) of each row, and standard error."""
    status, out, err = flowctl(folder, "generate", *arguments)
    rows = [json.loads(line) for line in out.splitlines()]
    return status, [(row["what"], row["file"]) for row in rows], err


def test_each_file_is_reported_and_a_second_run_changes_nothing(folder: Path) -> None:
    created = [("created", TYPES), ("created", "deno.json"), ("created", "derived.ts")]
    assert generate(folder, "-o", "json") == (0, created, "")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.ts")}
    assert generate(folder) == (0, [("unchanged", TYPES), ("unchanged", "deno.json")], "")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.ts")} == before


def test_generate_check_writes_nothing_and_fails_until_files_are_current(folder: Path) -> None:
    status, rows, said = generate(folder, "--check")
    assert (status, rows[0]) == (1, ("created", TYPES))
    assert said == "files are not up to date; run 'flowctl generate' to create, update or remove the files listed\n"
    assert sorted(path.name for path in folder.iterdir()) == ["flow.yaml"]
    generate(folder)
    assert generate(folder, "--check")[0] == 0
    (folder / TYPES).write_text("// something else\n")
    assert generate(folder, "--check")[:2] == (1, [("updated", TYPES), ("unchanged", "deno.json")])


def test_generate_reports_errors_as_check_does(folder: Path) -> None:
    (folder / "flow.yaml").write_text(CATALOG.replace("source: a/source", "source: a/sauce"))
    status, rows, said = generate(folder)
    assert (status, rows) == (1, [])
    assert (
        said
        == """\
the catalog has errors: some files may not have been generated, and no file was removed
error[E201]: collection 'a/sauce', referenced by transform 'fromSource' of 'a/derived', is not defined
  --> flow.yaml:10:47
10 |       transforms: [{name: fromSource, source: a/sauce, shuffle: any}]
   |                                               ^^^^^^^ did you mean 'a/source'? (flow.yaml:2:3)

1 error
"""
    )


def test_generate_reports_settings_left_to_the_author(folder: Path) -> None:
    (folder / "deno.json").write_text('{"imports": {"flow/": "./mine/"}}')
    status, rows, said = generate(folder)
    assert (status, rows) == (0, [("created", TYPES), ("created", "derived.ts")])
    assert said == (
        'for editors to find the types, add "flow/": "./flow_generated/typescript/" to "imports":'
        ' deno.json maps this name to "./mine/"\n'
    )


@pytest.mark.deno
def test_editor_types_equal_the_types_of_check(folder: Path) -> None:
    generate(folder)
    spec = load(folder / "flow.yaml").derivations["a/derived"]
    assert (folder / TYPES).read_text() == generate_interfaces(spec)
    module = folder / "derived.ts"
    for text, status in (
        (module.read_text(), 0),
        (module.read_text().replace("throw", "read.doc.idd;\n        throw"), 1),
    ):
        module.write_text(text)
        done = subprocess.run(
            [deno(), "check", "derived.ts"], cwd=folder, env=environment(), capture_output=True, check=False
        )
        assert done.returncode == status, done.stderr.decode()


# `flowctl json-schema` prints what editors check a catalog with.

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def printed() -> Draft202012Validator:
    result = CliRunner().invoke(commands, ["json-schema"])
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_json_schema_accepts_all_example_catalogs(printed: Draft202012Validator) -> None:
    files = [ROOT / "flow.yaml", *ROOT.glob("examples/**/*flow.yaml")]

    faults = {str(each): list(printed.iter_errors(parse_yaml(each.read_text(), each.name).value)) for each in files}

    assert len(faults) > 10
    assert [name for name, found in faults.items() if found] == []


@pytest.mark.parametrize(
    ("catalog", "path", "keyword"),
    [
        # a property that is not known
        ({"colections": {}}, "$", "additionalProperties"),
        # a derivation without transforms
        ({"collections": {"a/b": {"schema": {}, "key": ["/id"], "derive": {"using": {"sqlite": {}}}}}},
         "$.collections.a/b.derive", "required"),
        # a key that is no pointer
        ({"collections": {"a/b": {"schema": {}, "key": ["id"]}}}, "$.collections.a/b.key[0]", "pattern"),
        # a schema, and a read schema too
        ({"collections": {"a/b": {"schema": {}, "readSchema": {}, "key": ["/id"]}}}, "$.collections.a/b", "oneOf"),
        # a name with a space
        ({"collections": {"a b": {"schema": {}, "key": ["/id"]}}}, "$.collections", "pattern"),
        # a test's name of two lines
        ({"tests": {"a\nb": []}}, "$.tests", "pattern"),
    ],
)  # fmt: skip
def test_json_schema_faults_have_positions(
    printed: Draft202012Validator, catalog: object, path: str, keyword: str
) -> None:
    [fault] = printed.iter_errors(catalog)

    assert (fault.json_path.replace("['a/b']", ".a/b"), fault.validator) == (path, keyword)


PYTHON = CATALOG.replace("typescript: {module: derived.ts}", "python: {files: [code/pyproject.toml, code/derived.py]}")


def test_commands_name_the_environment_that_is_not_built(folder: Path) -> None:
    (folder / "flow.yaml").write_text(PYTHON)
    (folder / "code").mkdir()
    (folder / "code/pyproject.toml").write_text('[project]\ndependencies = ["tiny"]\n')
    (folder / "code/derived.py").write_text("")
    environment = {**BARE, **offline(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    for command in (["check"], ["test"], ["run", "--until-idle"], ["preview", "--task", "a/derived"]):
        status, _, said = flowctl(folder, *command, env=environment)
        assert status == 1
        assert "error[E536]: no environment is built for the present content of pyproject.toml" in said
        assert "--> code/pyproject.toml:2:1" in said
        assert "run flowctl generate" in said

    status, _, said = flowctl(folder, "generate", env=environment)
    assert status == 1
    assert "code/pyproject.toml:2:1" in said
    assert "cannot build the environment: " in said
    assert flowctl(folder, "generate", "--check", env=environment)[::2] == (0, "")
