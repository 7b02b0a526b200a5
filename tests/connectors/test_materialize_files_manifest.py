"""Versions of the manifest: one writer wins each number, however many there are and however long one of them slept."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from connectors.materialize_files.manifest import Manifest, Shard, Version
from derive.errors import EndpointError, FencedError


def own(version: Version, begin: int = 0, end: int = 9) -> Shard:
    shard = version.of(begin, end)
    assert shard is not None
    return shard


def after(shard: Shard, checkpoint: str) -> Shard:
    return replace(shard, checkpoint=checkpoint, transaction=shard.transaction + 1, publishing=((checkpoint, "b/c"),))


def test_manifest_versions_have_committed_files(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "deep" / "folder", "a/m")
    assert manifest.read() == Version()

    shard = after(own(manifest.open(0, 9, "one")), "aa")
    manifest.commit(shard)

    assert manifest.read() == Version(2, (Shard(0, 9, "one", "aa", 1, (("aa", "b/c"),)),))
    assert manifest.open(0, 9, "two") == Version(3, (Shard(0, 9, "two", "aa", 0, (("aa", "b/c"),)),))


def test_range_inherits_from_the_smallest_enclosing_range(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path, "a/m")
    manifest.commit(after(own(manifest.open(0, 9, "all")), "01"))
    manifest.commit(after(own(manifest.open(0, 4, "left"), 0, 4), "02"))

    version = manifest.open(2, 3, "within")

    assert own(version, 2, 3).checkpoint == "02"
    # a range that is larger than those that there are begins from nothing
    assert own(manifest.open(0, 100, "more"), 0, 100).checkpoint == ""


def test_many_shards_commit_concurrently(tmp_path: Path) -> None:
    def work(number: int) -> None:
        manifest = Manifest(tmp_path, "a/m")
        shard = own(manifest.open(number, number, f"session {number}"), number, number)
        for count in range(20):
            shard = after(shard, f"{count:02d}")
            manifest.commit(shard)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))

    version = Manifest(tmp_path, "a/m").read()
    assert version.number == 6 * 21
    assert sorted((shard.begin, shard.checkpoint, shard.transaction) for shard in version.shards) == [
        (number, "19", 20) for number in range(6)
    ]
    # what is old was removed
    assert len(list(tmp_path.iterdir())) < 101


def test_only_one_of_racing_sessions_commits(tmp_path: Path) -> None:
    def work(number: int) -> int:
        manifest = Manifest(tmp_path, "a/m")
        shard = own(manifest.open(0, 9, f"session {number}"))
        committed = 0
        try:
            while committed < 20:
                shard = after(shard, f"{committed:02d}")
                manifest.commit(shard)
                committed += 1
        except FencedError:
            pass
        return committed

    with ThreadPoolExecutor(6) as pool:
        committed = list(pool.map(work, range(6)))

    # The one that opened last was not fenced off.
    last = own(Manifest(tmp_path, "a/m").read())
    assert (last.checkpoint, last.transaction) == ("19", 20)
    assert committed[int(last.session.removeprefix("session "))] == 20


class Sleeping(Manifest):
    """Has something happen between its look at the last version and its attempt to make the next."""

    meanwhile: Callable[[], None] | None = None

    @override
    def _link(self, version: Version) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()
        return super()._link(version)


@pytest.mark.parametrize("commits", [1, 49, 80])
def test_stopped_session_cannot_commit_after_versions_were_removed(tmp_path: Path, commits: int) -> None:
    sleeper, other = Sleeping(tmp_path, "a/m"), Manifest(tmp_path, "a/m")
    shard = own(sleeper.open(0, 9, "sleeper"))

    def take_over() -> None:
        newer = own(other.open(0, 9, "other"))
        for _ in range(commits):
            newer = after(newer, "bb")
            other.commit(newer)

    sleeper.meanwhile = take_over
    with pytest.raises(FencedError):
        sleeper.commit(after(shard, "aa"))

    assert own(other.read()).checkpoint == "bb"
    assert own(other.open(0, 9, "third")).checkpoint == "bb"


@pytest.mark.parametrize("commits", [1, 120])
def test_stopped_session_continues_beside_others(tmp_path: Path, commits: int) -> None:
    sleeper, other = Sleeping(tmp_path, "a/m"), Manifest(tmp_path, "a/m")
    shard = own(sleeper.open(0, 4, "sleeper"), 0, 4)

    def go_on() -> None:
        beside = own(other.open(5, 9, "other"), 5, 9)
        for _ in range(commits):
            beside = after(beside, "bb")
            other.commit(beside)

    sleeper.meanwhile = go_on
    sleeper.commit(after(shard, "aa"))

    assert own(other.read(), 0, 4).checkpoint == "aa"
    assert own(other.read(), 5, 9).checkpoint == "bb"


def test_a_damaged_version_is_reported(tmp_path: Path) -> None:
    (tmp_path / "000000000001.json").write_text('{"shards": [{}]}')

    with pytest.raises(EndpointError, match="000000000001.json is damaged"):
        Manifest(tmp_path, "a/m").read()
