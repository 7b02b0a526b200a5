"""Hints: their commands have the catalog and the data folder of the present command, so they can be copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from forked_flowctl import flowctl

from derive.cli.main import flowctl as group
from derive.cli.pasting import DATA, OPTIONS_OF, SOURCE, give, pasteable


@pytest.fixture
def given() -> Iterator[None]:
    give(SOURCE, "a/flow.yaml")
    give(DATA, "my data")
    yield
    give(SOURCE, None)
    give(DATA, None)


OPTIONS = "--source a/flow.yaml --data 'my data'"


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("derive it: flowctl run --until-idle", f"derive it: flowctl run {OPTIONS} --until-idle"),
        ("Start: flowctl run & flowctl sql serve", f"Start: flowctl run {OPTIONS} & flowctl sql serve {OPTIONS}"),
        ("flowctl sql -c 'SELECT 1'", f"flowctl sql {OPTIONS} -c 'SELECT 1'"),
        ("read it: flowctl collections list; or wait", f"read it: flowctl collections list {OPTIONS}; or wait"),
        ("(flowctl quarantine list --task a)", f"(flowctl quarantine list {OPTIONS} --task a)"),
        ("types: flowctl generate", "types: flowctl generate --source a/flow.yaml"),
        ("restore it: flowctl restore B --data new", "restore it: flowctl restore --source a/flow.yaml B --data new"),
        ("create a catalog: flowctl init", "create a catalog: flowctl init"),
        ("or in a running 'flowctl run --watch'", "or in a running 'flowctl run --watch'"),
    ],
)
def test_commands_to_copy_get_the_options_of_the_command_line(text: str, expected: str) -> None:
    assert pasteable(text) == expected


def test_text_stays_unchanged_without_options() -> None:
    assert pasteable("derive it: flowctl run") == "derive it: flowctl run"


def test_every_command_with_these_options_is_known() -> None:
    def options(command: click.Command, name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        context = click.Context(command, info_name=name)
        if isinstance(command, click.Group):
            for member in command.list_commands(context):
                found = command.get_command(context, member)
                assert found is not None
                yield from options(found, f"{name} {member}".strip())
        names = {name for option in command.params for name in option.opts}
        yield name, tuple(option for option in (SOURCE, DATA) if option in names)

    assert {name: taken for name, taken in options(group, "") if SOURCE in taken} == OPTIONS_OF


def test_hint_of_a_command_has_only_options_of_its_command_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "collections: {a/b: {key: [/id], schema: {type: object, properties: {id: {type: integer}}, required: [id]}}}\n"
    )
    why = ["why", "--collection", "a/b", "--key", "[1]"]

    assert (
        "ingest documents: flowctl ingest --source c.yaml --collection a/b FILE"
        in (flowctl(tmp_path, *why, "--source", "c.yaml")[2])
    )
    assert (
        "ingest documents: flowctl ingest --collection a/b FILE"
        in (flowctl(tmp_path, *why, env={"FLOW_SOURCE": "c.yaml"})[2])
    )
