"""Completion of commands, options and names in a shell, and the versions that `--version` shows."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from forked_flowctl import flowctl

from derive.cli.main import flowctl as group

CATALOG = """\
collections:
  shop/orders: {schema: {type: object, properties: {id: {type: integer}}, required: [id]}, key: [/id]}
  shop/doubled:
    schema: {type: object, properties: {id: {type: integer}}, required: [id]}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: double, source: shop/orders, shuffle: any, lambda: SELECT 2 * $id AS id;}]
materializations:
  shop/files:
    endpoint: {connector: {image: materialize-files, config: {path: out}}}
    bindings: [{source: shop/doubled, resource: {path: doubled}}]
"""


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("co", ["collections", "compact", "completion", "compute", "connector"]),
        ("collections r", ["read"]),
        ("why --coll", ["--collection"]),
        ("why --collection ", ["shop/doubled", "shop/orders", "sql/public/kept"]),
        ("collections read --collection shop/d", ["shop/doubled"]),
        ("ingest --data .flow --collection sql", ["sql/public/kept"]),
        ("ingest --data none --collection sql", []),
        ("logs --task shop/", ["shop/doubled", "shop/files"]),
        ("materialize plan s", ["shop/files"]),
        ("connector describe materialize-s", ["materialize-sqlite"]),
        ("discover --fo", ["--format"]),
        ("why --source none.yaml --collection ", ["sql/public/kept"]),
        ("completion ", ["bash", "fish", "zsh"]),
    ],
)
def test_words_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, expected: list[str]) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    assert flowctl(tmp_path, "sql", "-c", "CREATE TABLE kept (a int)")[0] == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_FLOWCTL_COMPLETE", "bash_complete")
    *arguments, incomplete = words.split(" ")

    completions = ShellComplete(group, {}, "flowctl", "_FLOWCTL_COMPLETE").get_completions(arguments, incomplete)

    assert sorted(item.value for item in completions) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_asks_flowctl(tmp_path: Path, shell: str) -> None:
    status, script, err = flowctl(tmp_path, "completion", shell)

    assert (status, err) == (0, "")
    assert f"_FLOWCTL_COMPLETE={shell}_complete" in script
    assert ("split --max 1" in script) == (shell == "fish")  # a description has commas


def test_version_names_the_programs(tmp_path: Path) -> None:
    status, out, err = flowctl(tmp_path, "--version")

    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["flowctl", "Python", "Spark", "Java", "SQLite", "Deno"]
    assert all(any(character.isdigit() for character in line) for line in out.splitlines())
