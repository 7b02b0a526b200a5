"""The site of `make docs`: every page is in its navigation, no link of a page is lost, and the reference is whole."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import click
import yaml
from checkout import REPOSITORY

from derive.cli.main import flowctl
from derive.sql.preparation import KNOWN_SETTINGS
from website.pages import pages


class _Loader(yaml.SafeLoader):
    """Reads the configuration of MkDocs, which names Python functions."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


@cache
def site() -> dict[str, str]:
    return pages()


def nav_of(entries: list[Any]) -> list[str]:
    """Return the pages of a navigation, in order."""
    return [
        page
        for entry in entries
        for value in (entry.values() if isinstance(entry, dict) else [entry])
        for page in (nav_of(value) if isinstance(value, list) else [value])
    ]


def test_navigation_has_every_page_once() -> None:
    config = yaml.load((REPOSITORY / "website/mkdocs.yml").read_text(), _Loader)

    assert sorted(nav_of(config["nav"])) == sorted(site())


def test_links_of_the_site_lead_to_pages() -> None:
    lost = [
        (name, target)
        for name, text in site().items()
        if not name.startswith("reference/")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))
        if (REPOSITORY / "build/docs" / name).parent.joinpath(target).resolve() not in paths()
    ]

    assert lost == []


def paths() -> set[Any]:
    return {(REPOSITORY / "build/docs" / name).resolve() for name in site()}


def test_file_names_of_blocks_are_titles() -> None:
    assert '```yaml title="flow.yaml"\n' in site()["python-api.md"]


def commands_of(group: click.Group, name: str) -> list[str]:
    """Return the full names of all commands."""
    context = click.Context(group)
    names = []
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        names.append(f"{name} {part}")
        names += commands_of(command, f"{name} {part}") if isinstance(command, click.Group) else []
    return names


def test_reference_has_every_command_with_its_help() -> None:
    text = site()["reference/commands.md"]

    assert [line.lstrip("# ") for line in text.splitlines() if line.startswith("##")] == commands_of(flowctl, "flowctl")
    assert "--load-id ID" in text


def test_reference_has_fields_codes_settings_and_functions() -> None:
    codes = {
        code
        for path in (REPOSITORY / "derive/catalog").rglob("*.py")
        for code in re.findall(r'"([EN]\d{3})"', path.read_text(encoding="utf-8"))
    }
    listed = set(re.findall(r"^\| (\w+) \|", site()["reference/issues.md"], re.M))

    assert "| `readDelay` | string | Delay from" in site()["reference/fields.md"]
    assert "| endpoint | `path` | string, required |" in site()["reference/connectors.md"]
    assert "| `derive.shards.maxTxnDuration` | string, default `1s` |" in site()["reference/fields.md"]
    assert codes - listed == set()
    assert all(f"| `{name}` |" in site()["reference/settings.md"] for name in KNOWN_SETTINGS)
    functions = site()["reference/functions.md"]
    for row in (
        "| `lower` | (text) → text |",
        "| `array_append` | (T[], T) → T[] |",
        "| `string_agg` | (bytea, bytea) → bytea<br>(text, text) → text |",
        "| `row_number` | () → bigint |",
    ):
        assert row in functions
