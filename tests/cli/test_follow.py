"""`flowctl ingest --follow` from outside: options, output, Ctrl-C, and `kill -9` while files grow and rotate."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
from forked_flowctl import BARE, Flowctl, flowctl

CATALOG = """\
collections:
  l/orders:
    schema: {type: object, properties: {id: {type: integer}, text: {type: string}}, required: [id]}
    key: [/id]
"""
FOLLOW = ("ingest", "--collection", "l/orders", "--follow", "-o", "json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"id":1}\n{"id":2}\n{"id"')
    return tmp_path


def until_idle(folder: Path, *arguments: str, status: int = 0, failpoint: str = "") -> tuple[list[Any], str]:
    """Follow until no line is left, expect an exit status, and return the printed parts and standard error."""
    command = (*FOLLOW, "--until-idle", *arguments)
    code, out, err = flowctl(folder, *command, env={**BARE, "FLOW_FAILPOINT": failpoint})
    assert code == status, err
    return [json.loads(line) for line in out.splitlines()], err


def ids(folder: Path) -> list[int]:
    code, out, err = flowctl(folder, "collections", "read", "--collection", "l/orders")
    assert code == 0, err
    return sorted(json.loads(line)["id"] for line in out.splitlines())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--follow"], "--follow takes files and folders"),
        (["--follow", "-"], "--follow takes files and folders"),
        (["--follow", "--clock", "/at", "in"], "--follow cannot be combined with --clock"),
        (["--follow", "--load-id", "x", "in"], "--follow cannot be combined with --load-id"),
        (["--follow", "--dry-run", "in"], "--follow cannot be combined with --dry-run"),
        (["--until-idle", "in"], "--until-idle is for --follow"),
        (["--follow", "--until-idle", "none.jsonl"], "there is no file none.jsonl"),
        (["--follow", "none/none.jsonl"], "there is no file none/none.jsonl"),
        (["--follow", "--until-idle", "none.json"], "--format jsonl reads a .json file as JSON Lines"),
        (["--follow", "none.jsonl.gz"], "only JSON Lines and CSV without compression grow"),
        (["--follow", "/dev/null"], "it is neither a file nor a folder"),
    ],
)
def test_follow_refuses_options_without_a_meaning(folder: Path, arguments: list[str], error: str) -> None:
    code, _, err = flowctl(folder, "ingest", "--collection", "l/orders", *arguments)
    assert (code, error in err) == (2, True), err
    assert not (folder / ".flow").exists()


def test_follow_until_idle_prints_parts_and_counts_partial_lines(folder: Path) -> None:
    part = {"collection": "l/orders", "file": "in/a.jsonl"}
    parts, err = until_idle(folder, "in")
    assert parts == [{**part, "documents": 2, "begin": 0, "end": 18}]
    assert "in/a.jsonl: the last line has no end yet, and waits for it (5 bytes)" in err
    (folder / "in/a.jsonl").write_text('{"id":1}\n{"id":2}\n{"id":x}\n')
    parts, err = until_idle(folder, "in/a.jsonl", status=1)
    assert parts == []
    assert "in/a.jsonl:3: not JSON: unexpected character, expected a JSON value in column 7" in err
    assert ids(folder) == [1, 2]
    _, listed, _ = flowctl(folder, "ingestions", "list", "-o", "json")
    row = json.loads(listed)
    assert (row["documents"], row["bytes"], row["state"]) == (2, 18, "followed to line 2")
    assert row["file"] == str(folder / "in/a.jsonl")


def test_follow_ingests_new_lines_until_ctrl_c(folder: Path) -> None:
    (folder / "in/a.jsonl").unlink()
    with Flowctl([*FOLLOW, "in", "later.jsonl"], cwd=folder, stdout=PIPE, stderr=PIPE, text=True, env=BARE) as process:
        assert process.stdout
        assert process.stderr
        assert "there is no file later.jsonl yet" in process.stderr.readline()
        for number, name in enumerate(["in/a.jsonl", "later.jsonl", "in/a.jsonl"]):
            with (folder / name).open("a") as file:
                file.write(f'{{"id":{number}}}\n')
            assert json.loads(process.stdout.readline())["file"] == name
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 0
    assert "stopped; the next 'flowctl ingest --follow' continues after the last ingested line" in err
    assert ids(folder) == [0, 1, 2]


class Writer:
    """Writes lines with successive numbers into files that grow, rotate and appear."""

    def __init__(self, folder: Path, rolls: random.Random) -> None:
        self._folder, self._rolls = folder, rolls
        self._files = self.written = 0
        self._rest = ""
        (folder / "a.jsonl").unlink()

    def write(self) -> None:
        """Write a few lines; the last line of the growing file may be partial until the next call."""
        with (self._folder / "grows.jsonl").open("a") as file:
            text = self._rest + "".join(f'{{"id":{self.next()}}}\n' for _ in range(self._rolls.randrange(30)))
            cut = self._rolls.randrange(len(text) + 1)
            file.write(text[:cut])
            self._rest = text[cut:]
        change = self._rolls.randrange(6)
        self._files += 1
        if change == 0 and not self._rest:
            (self._folder / "grows.jsonl").rename(self._folder / f"{self._files}.jsonl")
        elif change == 1:
            rows = "".join(f'{self.next()},"a\n{self._files}"\n' for _ in range(5))
            (self._folder / f"{self._files}.csv").write_text(f"id,text\n{rows}")

    def end(self) -> None:
        """Complete the last line."""
        with (self._folder / "grows.jsonl").open("a") as file:
            file.write(self._rest)
        self._rest = ""

    def next(self) -> int:
        """Return the next number."""
        self.written += 1
        return self.written


POINTS = ["metadata.committing", "metadata.committed", "segment.closing", "segment.closed", "segment.synced"]


@pytest.mark.parametrize(
    ("kills", "seed"), [(4, 1), *(pytest.param(50, seed, marks=pytest.mark.torture) for seed in range(2, 6))]
)
def test_follow_ingests_each_line_once_through_kills(folder: Path, kills: int, seed: int) -> None:
    """Law L2: a folder that grows through kills at failpoints, and kills of a follower that waits or commits."""
    rolls = random.Random(seed)
    writer = Writer(folder / "in", rolls)
    for _ in range(kills):
        writer.write()
        if rolls.randrange(2):
            failpoint = f"{rolls.choice(POINTS)}:{rolls.randrange(1, 9)}"
            flowctl(folder, *FOLLOW, "--until-idle", "in", env={**BARE, "FLOW_FAILPOINT": failpoint})
            continue
        with Flowctl([*FOLLOW, "in"], cwd=folder, stdout=PIPE, stderr=DEVNULL, text=True, env=BARE) as process:
            assert process.stdout
            for _ in range(rolls.randrange(3)):
                (folder / "in" / f"extra-{writer.written}.jsonl").write_text(f'{{"id":{writer.next()}}}\n')
                process.stdout.readline()
            writer.write()
            process.kill()
    writer.end()
    until_idle(folder, "in")
    assert Counter(ids(folder)) == Counter(range(1, writer.written + 1))
    assert until_idle(folder, "in")[0] == []
