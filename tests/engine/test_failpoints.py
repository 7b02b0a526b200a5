"""Crashes at every step: wherever a process is killed, going on gives the bytes of a history without a crash (law L2)."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest
from conftest import World, examples, write_catalog
from crash_client import CrashServer
from crash_script import BASE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.failpoint import FAILPOINTS
from derive.storage.metadata.chain import paths_of
from derive.storage.metadata.place import place_of
from derive.storage.metadata.shared_opening import settle_place

CATALOG = """
collections:
  x/source:
    schema:
      type: object
      required: [id, k, v, at]
      properties: {id: {type: integer}, k: {type: string}, v: {type: integer}, at: {type: string}}
    key: [/id]
  x/counts:
    schema:
      type: object
      required: [k, n]
      reduce: {strategy: merge}
      properties: {k: {type: string}, n: {type: integer}, sum: {type: integer, reduce: {strategy: sum}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: count
          source: x/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING 'all' AS k, n, $v AS sum;
        - name: forget
          source: x/source
          shuffle: {key: [/k]}
          readDelay: 2s
          lambda: UPDATE seen SET n = n - 1 WHERE k = $k;
  x/large:
    schema: {type: object, required: [n], properties: {n: {type: integer}, sum: {type: integer}}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE last (n INTEGER PRIMARY KEY);"]}}
      transforms:
        - {name: keep, source: x/counts, shuffle: {key: [/n]}, lambda: "INSERT INTO last VALUES ($n) ON CONFLICT DO NOTHING RETURNING n, $sum;"}
  x/ping:
    schema: {type: object, required: [k, v], properties: {k: {type: string}, v: {type: integer}, n: {type: integer}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: begin
          source: x/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING k, $v AS v, n;
        - {name: again, source: x/pong, shuffle: {key: [/k]}, lambda: "SELECT $k, $v - 1 AS v, n FROM seen WHERE k = $k AND $v > 0;"}
  x/pong:
    schema: {type: object, required: [k, v], properties: {k: {type: string}, v: {type: integer}}}
    key: [/k]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: back, source: x/ping, shuffle: any, priority: 1, lambda: "SELECT $k, $v;"}
        - {name: late, source: x/source, shuffle: any, readDelay: 3s, lambda: "SELECT $k || $k AS k, 0 AS v;"}
"""


class Home:
    """A folder of data folders with one history, and the server that brings it about in them."""

    def __init__(self, folder: Path, server: CrashServer) -> None:
        self.folder = folder
        self.server = server

    def go(self, data: Path, failpoint: str = "", cache: Path | None = None) -> int:
        """Do the history, or the rest of it, in a process of its own; its exit status."""
        order = {"do": "history", "source": str(self.folder / "flow.yaml"), "data": str(data)}
        order |= {"cache": str(cache)} if cache else {}
        status = self.server.attempt(order, failpoint)
        assert status in (0, -signal.SIGKILL)
        return status


def digest(folder: Path) -> dict[str, str]:
    world = World(folder, load(folder.parent / "flow.yaml"))
    try:
        return world.digest()
    finally:
        world.store.close()


@pytest.fixture(scope="module")
def home(server: CrashServer, tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("failpoints")
    write_catalog(folder, CATALOG)
    return Home(folder, server)


@pytest.fixture(scope="module")
def expected(home: Home) -> dict[str, str]:
    assert home.go(home.folder / "undisturbed") == 0
    found = digest(home.folder / "undisturbed")
    assert len(set(found.values())) == 4
    return found


# Those of materializations are reached in test_materialization_kills.py, those of hydration in
# tests/compute/test_hydration.py, those of dataflows in test_torture_instances.py, those of backups in
# tests/backup/test_backup.py, those of refills in test_refills.py, those of shadows and swaps in test_shadow_kills.py,
# those of states that travel in test_l2_crash_of_a_travelling_state_does_not_change_results,
# those of moved metadata in tests/storage/test_metadata_move.py, those of switches in test_switch_kills.py, those of retries in test_quarantine_kills.py, and those of upgrades in tests/sql/test_names_upgrade.py.
ELSEWHERE = (
    *(
        "backup.",
        "chain.",
        "dataflow.",
        "hydration.",
        "materialize.",
        "move.",
        "quarantine.",
        "refill.",
        "restore.",
        "shadow.",
        "swap.",
        "switch.",
    ),
    "upgrade.",
)
DERIVING = sorted(name for name in FAILPOINTS if not name.startswith(ELSEWHERE))

# Nothing is discarded unless a crash has left something behind.
AFTER_A_CRASH = {"state.discarded", "state.discarding"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failpoint", [name for name in DERIVING if name not in AFTER_A_CRASH])
def test_l2_crash_with_metadata_in_postgresql_does_not_change_results(
    failpoint: str, home: Home, expected: dict[str, str]
) -> None:
    from postgres_server import server

    data = home.folder / f"postgresql-{failpoint}"
    settle_place(data, place_of(server().metadata_url_by_file), creates=True)

    assert home.go(data, failpoint) == -signal.SIGKILL
    assert home.go(data) == 0
    assert digest(data) == expected
    assert not (data / "metadata.db").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("failpoint", DERIVING)
def test_l2_crash_at_any_step_does_not_change_results(failpoint: str, home: Home, expected: dict[str, str]) -> None:
    data = home.folder / failpoint
    if failpoint in AFTER_A_CRASH:
        assert home.go(data, "state.committed:6") == -signal.SIGKILL

    assert home.go(data, failpoint) == -signal.SIGKILL
    assert home.go(data) == 0
    assert digest(data) == expected
    left = {path.name for path in data.rglob("*.parquet")}
    assert not (data / "compaction").exists()
    world = World(data, load(home.folder / "flow.yaml"))
    known = {Path(each).name for name in world.catalog.collections for each in world.store.garbage.known(name)}
    sinces = [world.store.collection(name).since for name in ("x/source", "x/counts")]  # type: ignore[union-attr]
    world.store.close()
    assert left <= known  # no orphans
    assert sinces == [BASE + 20 * 400_000, BASE + 25 * 400_000]


TRAVELLING = ["chain.collected", "chain.fetched", "chain.put", "chain.putting", "split.copied", "split.committed"]
TRAVELLING += ["state.committed", "state.committing", "state.folded", "state.folding", "state.linked"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", ["same", "other", "none", "postgresql"])
@pytest.mark.parametrize("failpoint", TRAVELLING)
def test_l2_crash_of_a_travelling_state_does_not_change_results(
    failpoint: str, machine: str, home: Home, expected: dict[str, str]
) -> None:
    """Law: a state that travels gives the same documents, also if it continues elsewhere, or in the data folder."""
    from postgres_server import server

    data, cache = home.folder / f"{failpoint}-{machine}", home.folder / f"{failpoint}-{machine}-cache"
    next_cache = {"other": cache / "other", "none": None}.get(machine, cache)
    if machine == "postgresql":
        settle_place(data, place_of(server().metadata_url_by_file), creates=True)
    if failpoint == "chain.fetched":
        assert home.go(data, "state.committed:6", cache) == -signal.SIGKILL
        cache = cache / "empty"
    if failpoint == "chain.collected":
        assert home.go(data, "chain.put:6", cache) == -signal.SIGKILL

    assert home.go(data, f"{failpoint}:2" if failpoint.startswith("chain.put") else failpoint, cache) == -signal.SIGKILL
    assert home.go(data, "", next_cache) == 0
    assert digest(data) == expected
    world = World(data, load(home.folder / "flow.yaml"))
    chains = [chain for task in world.store.tasks() for chain in task.chains.values()]
    world.store.close()
    stored = {str(path.relative_to(data)) for path in (data / "chains").rglob("*") if path.is_file()}
    assert paths_of(chains) <= stored
    assert chains or machine == "none"


@pytest.mark.torture  # test_crash_machine.py has repeated crashes, too
@settings(max_examples=examples(16, 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(crashes=st.lists(st.tuples(st.sampled_from(DERIVING), st.integers(1, 12)), min_size=1, max_size=5))
def test_l2_repeated_crashes_do_not_change_results(
    crashes: list[tuple[str, int]], home: Home, expected: dict[str, str]
) -> None:
    data = Path(tempfile.mkdtemp(dir=home.folder))
    for name, times in crashes:
        home.go(data, f"{name}:{times}")

    assert home.go(data) == 0
    assert digest(data) == expected
