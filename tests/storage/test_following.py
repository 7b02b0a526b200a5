"""Growing files: each complete line is ingested once, however its file is written, rotated, replaced or read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
from conftest import World, write_catalog
from hypothesis import given
from hypothesis import strategies as st

from derive.catalog import load
from derive.cli.follow import line_formats
from derive.storage.following import Follower
from derive.storage.ingest import Ingestion
from derive.storage.inputs.growing_file import PIECE_BYTES, LineFormat, complete_bytes

pytestmark = pytest.mark.both_databases

CATALOG = """
collections:
  f/lines:
    schema: {type: object, required: [id], properties: {id: {type: integer}, text: {type: string}}}
    key: [/id]
"""


def lines(*ids: int) -> str:
    return "".join(f'{{"id":{number}}}\n' for number in ids)


@dataclass
class Scene:
    """A folder with growing files, and a follower that stays, or is another one for each look."""

    folder: Path
    world: World
    is_restarted: bool
    roots: tuple[str, ...] = (".",)
    errors: list[str] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    follower: Follower | None = None

    def open(self) -> Follower:
        spec = self.world.catalog.collections["f/lines"]
        roots = [str(self.folder / root) for root in self.roots]
        form_of = line_formats(roots, None, None, 1 << 20)
        return Follower(self.world.store, spec, Ingestion(self.world.store, spec), roots, form_of)

    def close(self) -> None:
        if self.follower is not None:
            self.follower.close()
            self.follower = None

    def look(self) -> None:
        """Ingest until no complete line is left."""
        self.follower = self.follower or self.open()
        while True:
            step = self.follower.step()
            self.errors += [error.message.replace(f"{self.folder}/", "") for error in step.errors]
            self.notes += [note.replace(f"{self.folder}/", "") for note in step.notes]
            self.left.append(step.left)
            if step.is_idle:
                break
        if self.is_restarted:
            self.close()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def append(self, name: str, text: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(text)

    def rename(self, name: str, other: str) -> None:
        (self.folder / name).rename(self.folder / other)

    @property
    def ids(self) -> list[int]:
        return sorted(orjson.loads(text)["id"] for *_, text in self.world.rows("f/lines"))


@pytest.fixture(params=["live", "restarted"])
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    (tmp_path / "in").mkdir()
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    scene = Scene(tmp_path / "in", world, request.param == "restarted")
    yield scene
    scene.close()
    world.store.close()


def test_growing_file_is_ingested_line_by_line(scene: Scene) -> None:
    scene.write("a.jsonl", lines(1) + '{"id"')
    scene.look()
    assert scene.ids == [1]
    scene.append("a.jsonl", ":2}")
    scene.look()
    assert scene.ids == [1]  # the line may still grow
    scene.append("a.jsonl", "\n\n" + lines(3))
    scene.write("b.jsonl", lines(4))
    (scene.folder / "sub").mkdir()
    scene.write("sub/c.jsonl", lines(5))
    scene.write(".hidden.jsonl", lines(99))
    scene.write("other.txt", lines(99))
    scene.look()
    scene.look()
    assert (scene.ids, scene.errors, scene.notes) == ([1, 2, 3, 4, 5], [], [])


def test_growing_csv_is_ingested_row_by_row(scene: Scene) -> None:
    scene.write("a.csv", "id,")
    scene.look()
    scene.append("a.csv", 'text\n1,"a\nb"\n2,"c\n')
    scene.write("b.tsv", 'id\t"te\nxt"\n3\tx\n')
    scene.look()
    assert scene.ids == [1, 3]
    scene.append("a.csv", 'd"\n4\n')
    scene.append("b.tsv", "5\ty\n")
    scene.look()
    assert scene.ids == [1, 2, 3, 5]
    assert scene.errors == [
        "a.csv: 1 document is not valid:\n  a.csv:6: the line has 1 cell, but the header names 2 columns"
    ]
    (position,) = [position for _, position in scene.world.store.positions("f/lines") if position.path.endswith("csv")]
    assert (position.lines, position.documents) == (5, 2)


@pytest.mark.sampled(2)
def test_large_backlog_is_ingested_in_parts(scene: Scene) -> None:
    text = "x" * 1_000_000
    scene.write("a.jsonl", "".join(f'{{"id":{number},"text":"{text}"}}\n' for number in range(6)))
    assert (scene.folder / "a.jsonl").stat().st_size > PIECE_BYTES
    scene.look()
    assert scene.ids == [0, 1, 2, 3, 4, 5]
    assert len(scene.left) > 2
    assert sorted(scene.left, reverse=True) == scene.left
    assert scene.left[-1] == 0


def test_rotated_files_keep_their_positions(scene: Scene) -> None:
    scene.write("a.jsonl", lines(1, 2))
    scene.look()
    scene.append("a.jsonl", lines(3))
    scene.rename("a.jsonl", "a.jsonl.1")  # without a known suffix
    scene.write("a.jsonl", lines(1))  # begins like the former file
    scene.look()
    assert scene.ids == [1, 1, 2, 3]
    scene.rename("a.jsonl.1", "a.jsonl.2")
    scene.rename("a.jsonl", "a.jsonl.1")
    scene.append("a.jsonl.1", lines(4))
    scene.append("a.jsonl.2", lines(5))
    scene.write("a.jsonl", lines(6))
    scene.look()
    scene.look()
    assert (scene.ids, scene.errors, scene.notes) == ([1, 1, 2, 3, 4, 5, 6], [], [])


def test_single_file_is_followed_through_rotations(scene: Scene) -> None:
    scene.roots = ("a.log",)
    scene.look()
    scene.write("a.log", lines(1))
    scene.write("b.log", lines(99))
    scene.look()
    scene.append("a.log", lines(2))
    scene.rename("a.log", "a.log.1")
    scene.write("a.log", lines(3))
    scene.look()
    scene.append("a.log.1", lines(4))
    scene.look()
    assert (scene.ids, scene.errors) == ([1, 2, 3, 4], [])


def test_deleted_file_is_read_while_it_is_open(scene: Scene) -> None:
    scene.write("a.jsonl", lines(1))
    scene.look()
    with (scene.folder / "a.jsonl").open("a") as file:
        (scene.folder / "a.jsonl").unlink()
        file.write(lines(2))
    scene.look()
    scene.write("a.jsonl", lines(3))
    scene.look()
    assert scene.ids == ([1, 3] if scene.is_restarted else [1, 2, 3])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("text", ["", lines(3), lines(3, 4, 5), lines(7, 8)])
def test_truncated_file_begins_again(scene: Scene, text: str) -> None:
    """A truncated file begins again, also if it has become as long as before, or longer."""
    scene.write("a.jsonl", lines(1, 2))
    scene.look()
    os.truncate(scene.folder / "a.jsonl", 0)
    scene.append("a.jsonl", text)
    os.utime(scene.folder / "a.jsonl", ns=(1, 1))
    scene.look()
    scene.append("a.jsonl", lines(9))
    scene.look()
    ids = [orjson.loads(line)["id"] for line in text.splitlines()]
    assert scene.ids == sorted([1, 2, 9, *ids])


def test_replaced_file_continues_if_it_begins_like_the_former(scene: Scene) -> None:
    """A file that an editor or a restored backup has replaced has another inode, and its lines are not new."""
    scene.write("a.jsonl", lines(1, 2))
    scene.look()
    shutil.copy(scene.folder / "a.jsonl", scene.folder / ".a")
    scene.append(".a", lines(3))
    scene.rename(".a", "a.jsonl")
    scene.close()  # an open file still exists
    scene.look()
    assert scene.ids == [1, 2, 3]
    scene.write(".a", lines(4))
    scene.rename(".a", "a.jsonl")
    scene.look()
    assert scene.ids == [1, 2, 3, 4]


def test_links_to_one_file_are_one_file(scene: Scene) -> None:
    scene.write("a.jsonl", lines(1))
    (scene.folder / "hard.jsonl").hardlink_to(scene.folder / "a.jsonl")
    (scene.folder / "soft.jsonl").symlink_to("a.jsonl")
    (scene.folder / "broken.jsonl").symlink_to("none")
    (scene.folder / "loop").symlink_to(".")
    scene.look()
    scene.append("a.jsonl", lines(2))
    scene.look()
    assert (scene.ids, scene.errors) == ([1, 2], [])


def test_link_to_another_file_begins_that_file(scene: Scene) -> None:
    scene.roots = ("now.jsonl",)
    scene.write("1.jsonl", lines(1))
    (scene.folder / "now.jsonl").symlink_to("1.jsonl")
    scene.look()
    scene.append("1.jsonl", lines(2))
    scene.write("2.jsonl", lines(3))
    (scene.folder / "now.jsonl").unlink()
    (scene.folder / "now.jsonl").symlink_to("2.jsonl")
    scene.look()
    assert scene.ids == [1, 2, 3]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{oops}", "not JSON: unexpected character, expected a string key in column 2"),
        ('{"id":"x"}', "document [\"x\"] of 'f/lines' fails its schema at '/id'"),
        ("{}", "document [null] of 'f/lines' fails its schema: \"id\" is a required property"),
        ("[" * 300 + "]" * 300, "document of 'f/lines' is not valid, and it is nested more than 250 levels deep"),
    ],
)
def test_defect_stops_its_file_until_a_correction(scene: Scene, bad: str, reason: str) -> None:
    scene.write("a.jsonl", lines(1) + bad + "\n" + lines(3))
    scene.write("b.jsonl", lines(4))
    scene.look()
    scene.append("b.jsonl", lines(5))
    scene.look()
    assert scene.ids == [1, 4, 5]
    assert [error.partition("\n  a.jsonl:2: ")[2].startswith(reason) for error in scene.errors] in ([True], [True] * 2)
    scene.write("a.jsonl", lines(1) + lines(2) + lines(3))
    scene.look()
    assert scene.ids == [1, 2, 3, 4, 5]


def test_unusable_files_are_reported_and_others_are_ingested(scene: Scene) -> None:
    (scene.folder / "loop.jsonl").symlink_to("loop.jsonl")
    (scene.folder / "packed.jsonl").write_bytes(b"\x1f\x8b\x08\x00")
    scene.write("x.json", "[]")
    scene.write("long.jsonl", '"' + "x" * (1 << 22))
    scene.write("a.jsonl", lines(1))
    scene.is_restarted = False
    scene.look()
    scene.look()
    assert scene.ids == [1]
    assert sorted(scene.errors) == [
        "cannot read loop.jsonl: Too many levels of symbolic links",
        "long.jsonl:1: a line has more than 1,048,576 bytes",
        "packed.jsonl is gzip data, which cannot be followed",
    ]
    assert [note.partition(":")[0] for note in scene.notes] == ["x.json cannot be followed"]
    assert scene.follower is not None
    names = [Path(name).name for name in scene.follower.failures]
    assert names == ["long.jsonl", "loop.jsonl", "packed.jsonl"]


@pytest.mark.sampled(2)
def test_two_followers_ingest_each_line_once(scene: Scene) -> None:
    scene.write("a.jsonl", lines(1))
    scene.look()
    other = Scene(scene.folder, scene.world, scene.is_restarted)
    for first in range(2, 20, 6):
        scene.append("a.jsonl", lines(first, first + 1))
        scene.write(f"{first}.jsonl", lines(first + 2))
        other.look()
        scene.append("a.jsonl", lines(first + 3, first + 4))
        scene.append(f"{first}.jsonl", lines(first + 5))
        scene.look()
    other.look()
    other.close()
    assert scene.ids == list(range(1, 20))
    assert len(scene.world.store.positions("f/lines")) == 4
    assert scene.is_restarted or "another process has ingested lines of" in scene.notes[0]


def test_truncated_collection_forgets_its_files(scene: Scene) -> None:
    scene.write("a.jsonl", lines(1))
    scene.look()
    scene.world.store.truncate("f/lines")
    assert scene.world.store.positions("f/lines") == []
    scene.append("a.jsonl", lines(2))
    scene.look()
    assert scene.ids == [1, 2]


@given(st.lists(st.lists(st.text('a"\n,', max_size=3), min_size=2, max_size=2), max_size=5), st.integers(0, 60))
def test_complete_bytes_are_whole_rows(rows: list[list[str]], cut: int) -> None:
    """Law: of any beginning of a CSV text, the complete bytes are the rows that are in it."""
    texts = [",".join('"{}"'.format(cell.replace('"', '""')) for cell in row) + "\n" for row in rows]
    ends = [len("".join(texts[:count])) for count in range(len(texts) + 1)]
    form = LineFormat(is_csv=True, delimiter=",", most_bytes=100)
    data = "".join(texts)[:cut]
    assert complete_bytes(data.encode(), form) == max(end for end in ends if end <= len(data))
