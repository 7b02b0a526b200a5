"""A language comes from a package of its own: docs/writing-connectors.md alone is enough to write one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from forked_flowctl import flowctl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/writing-connectors.md").read_text().partition("## A derive connector")[2].partition("\n## ")[0]


def blocks(language: str) -> str:
    """The code of the page in one language."""
    return "".join(re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as packages are installed into, with the page's connector."""
    (tmp_path / "site/pick-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "site/pick.py").write_text(blocks("python"))
    entry = re.sub(r'\[project\.entry-points\."(.*)"\]', r"[\1]", blocks("toml")).replace('"', "")
    (tmp_path / "site/pick-1.0.dist-info/entry_points.txt").write_text(entry)
    (tmp_path / "site/pick-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: pick\nVersion: 1.0\n")
    return tmp_path / "site"


def on_site(site: Path, catalog: str, *arguments: str) -> tuple[int, str, str]:
    """Run `flowctl` where the site's packages are installed, beside a catalog."""
    (site / "flow.yaml").write_text(catalog)
    return flowctl(site, *arguments, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])})


def test_its_catalogs_are_checked_and_their_tests_pass(site: Path) -> None:
    status, _, err = on_site(site, blocks("yaml"), "check")
    assert (status, err) == (0, "flow.yaml: 2 collections, 1 derivation, no errors\n")
    status, _, err = on_site(site, blocks("yaml"), "test")
    assert status == 0, err
    schema = json.loads(on_site(site, blocks("yaml"), "json-schema")[1])
    using = schema["$defs"]["collection"]["properties"]["derive"]["properties"]["using"]
    assert [*using["properties"]] == ["pick", "sqlite", "typescript"]


# What is wrong in the catalog, with its code, line and message.
WRONG = [
    (", lambda: id name", "", "E700", 11, "transform 'fromSource' picks nothing"),
    ("with: {", "wiht: {", "E011", 9, "'pick' has no property 'wiht'"),
    (
        "{ pick: { with: { kind: picked } } }",
        "{}",
        "E014",
        9,
        "'using' names exactly one of 'pick', 'sqlite' and 'typescript'",
    ),
]


@pytest.mark.parametrize(("right", "wrong", "code", "line", "message"), WRONG)
def test_what_is_wrong_is_said_where_it_is(
    site: Path, right: str, wrong: str, code: str, line: int, message: str
) -> None:
    status, out, _ = on_site(site, blocks("yaml").replace(right, wrong), "check", "-o", "json")
    assert status == 1
    issues = [json.loads(issue) for issue in out.splitlines()]
    assert (code, line, message) in [(issue["code"], issue["line"], issue["message"]) for issue in issues]


def test_a_lambda_that_fails_is_located(site: Path) -> None:
    status, out, _ = on_site(site, blocks("yaml").replace("lambda: id name", "lambda: id nothing"), "test")
    assert status == 1
    assert "transform 'fromSource' finds no 'nothing' in {'id': 1" in out
    assert "flow.yaml:11:" in out


def test_one_that_cannot_be_loaded_is_named(site: Path) -> None:
    (site / "pick.py").write_text("raise RuntimeError('broken')")
    status, _, err = on_site(site, blocks("yaml"), "check")
    assert status == 1
    assert "the derive connector 'pick' (pick:PickConnector) cannot be loaded: RuntimeError('broken')" in err
