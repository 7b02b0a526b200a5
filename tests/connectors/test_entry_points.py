"""Entry points: what `importlib.metadata` says, without it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from forked_flowctl import flowctl

from derive.protocol.entry_points import entry_points_of, load, load_all

TEXT = """
[console_scripts]
odd = odd:main

[derive.connectors]
# A comment.
odd = odd.connector:Odd
 spaced  =  odd : Spaced  [extra]
"""


def oracle(group: str) -> dict[str, str]:
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=group)}


@pytest.mark.parametrize("group", ["derive.connectors", "console_scripts", "pytest11", "no.such.group"])
def test_entry_points_of_the_environment_are_found(group: str) -> None:
    assert entry_points_of(group) == oracle(group)


def installed(folder: Path, name: str, text: str | None) -> None:
    (folder / name).mkdir(parents=True)
    if text is not None:
        (folder / name / "entry_points.txt").write_text(text)


def test_entry_points_are_read_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "first", "odd-1.0.dist-info", TEXT)
    installed(tmp_path / "first", "old.egg-info", "[derive.connectors]\nold = old:Old\n")
    (tmp_path / "first" / "older-1.egg-info").write_text("no folder")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "nowhere")])

    assert entry_points_of("derive.connectors") == {
        "odd": "odd.connector:Odd",
        "spaced": "odd : Spaced  [extra]",
        "old": "old:Old",
    }
    assert entry_points_of("console_scripts") == {"odd": "odd:main"}


def test_first_package_of_a_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "first", "Odd_Name-2.0.dist-info", None)
    installed(tmp_path / "second", "odd.name-1.0.dist-info", TEXT)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])

    assert entry_points_of("derive.connectors") == {}
    monkeypatch.setattr(sys, "path", [str(tmp_path / "second"), str(tmp_path / "first")])
    assert sorted(entry_points_of("derive.connectors")) == ["odd", "spaced"]


@pytest.fixture
def unreadable() -> Iterator[str]:
    """A folder that this process, be it root's, may not look into."""
    user = os.geteuid()
    with TemporaryDirectory() as folder:
        installed(Path(folder), "odd-1.0.dist-info", TEXT)
        Path(folder).chmod(0)
        if user == 0:
            os.seteuid(65_534)
        yield folder
        os.seteuid(user)
        Path(folder).chmod(0o700)


def test_unreadable_folder_has_no_entry_points(unreadable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [unreadable])

    assert entry_points_of("derive.connectors") == {}


def test_entry_points_of_archives_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("odd-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
        file.writestr("odd-1.0.dist-info/entry_points.txt", "[derive.connectors]\nodd = odd:Odd\n")
    monkeypatch.setattr(sys, "path", [str(archive), str(tmp_path)])

    assert entry_points_of("derive.connectors") == {"odd": "odd:Odd"}


def test_entry_points_load_their_objects() -> None:
    assert load("derive.protocol.entry_points : load_all [extra]") is load_all

    load_all("connectors.derive_sqlite:SqliteConnector")
    assert "connectors.derive_sqlite.session" in sys.modules


# A language comes from a package of its own: docs/writing-connectors.md alone is enough to write one.


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


def test_catalogs_of_an_external_connector_pass_check_and_test(site: Path) -> None:
    status, _, err = on_site(site, blocks("yaml"), "check")
    assert (status, err) == (0, "flow.yaml: 2 collections, 1 derivation, no errors\n")
    status, _, err = on_site(site, blocks("yaml"), "test")
    assert status == 0, err
    schema = json.loads(on_site(site, blocks("yaml"), "json-schema")[1])
    using = schema["$defs"]["collection"]["properties"]["derive"]["properties"]["using"]
    assert [*using["properties"]] == ["pick", "python", "sqlite", "typescript"]


# A fault of the catalog: code, line and message.
WRONG = [
    (", lambda: id name", "", "E700", 11, "transform 'fromSource' picks nothing"),
    ("with: {", "wiht: {", "E011", 9, "'pick' has no property 'wiht'"),
    (
        "{ pick: { with: { kind: picked } } }",
        "{}",
        "E014",
        9,
        "'using' names exactly one of 'pick', 'python', 'sqlite' and 'typescript'",
    ),
]


@pytest.mark.parametrize(("right", "wrong", "code", "line", "message"), WRONG)
def test_external_connector_issues_have_positions(
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


def test_unloadable_connector_is_named(site: Path) -> None:
    (site / "pick.py").write_text("raise RuntimeError('broken')")
    status, _, err = on_site(site, blocks("yaml"), "check")
    assert status == 1
    assert "the derive connector 'pick' (pick:PickConnector) cannot be loaded: RuntimeError('broken')" in err
