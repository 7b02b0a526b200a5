"""Two real runs of one materialization: the later one has it, the earlier says so and ends, and no row is doubled."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from patience import PATIENCE_SECONDS, wait_until
from real_runs import Endpoint, Project, end, postgres, sales, sqlite

BY_DATA_FOLDER = re.compile(
    "error: another flowctl runs 'shop/view' now(, or has reset it)?, so this process commits nothing more"
)
BY_ENDPOINT = "a newer session is open, so this one (fence 1) stores nothing more"
LIMITS = ("--limits", '{"documents": 60}')


@pytest.fixture(params=["sqlite", "postgres"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Endpoint:
    return sqlite(tmp_path) if request.param == "sqlite" else postgres()


@pytest.fixture
def project(tmp_path: Path, endpoint: Endpoint) -> Project:
    made = Project(tmp_path / "project", endpoint)
    made.ingest(*(sales(begin, begin + 60) for begin in range(0, 300, 60)))
    return made


def is_paused(run: subprocess.Popen[str]) -> bool:
    assert run.poll() is None
    return Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wait_until_paused(project: Project, run: subprocess.Popen[str]) -> None:
    """Wait until a run has come to its failpoint, where no thread of it may be writing to the metadata database."""
    wait_until(lambda: is_paused(run))
    with closing(apsw.Connection(str(project.folder / "data" / "metadata.db"))) as metadata:
        for _ in range(100):
            try:
                metadata.execute("BEGIN IMMEDIATE; ROLLBACK")
                return
            except apsw.BusyError:  # another thread was; it goes on for a moment
                os.kill(run.pid, signal.SIGCONT)
                time.sleep(0.01)
                os.kill(run.pid, signal.SIGSTOP)
                wait_until(lambda: is_paused(run))
    raise AssertionError("it holds the metadata database")


def says_that_it_was_fenced(run: subprocess.Popen[str]) -> None:
    """Wait until a run has ended, and said by what: whichever is asked first."""
    _, said = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 1, said
    assert BY_DATA_FOLDER.search(said) or BY_ENDPOINT in said, said
    assert "Traceback" not in said


def divide(project: Project) -> None:
    code, said = project.called("split", "--task", "shop/view")
    assert code == 0, said


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_split", [False, True])
def test_later_run_continues_and_the_earlier_run_ends(project: Project, is_split: bool) -> None:
    with project.run(*LIMITS) as earlier:
        project.wait_until_stored()
        if is_split:
            divide(project)
        with project.run(*LIMITS) as later:
            project.ingest(sales(300, 600))
            says_that_it_was_fenced(earlier)
            project.wait_until_stored()
            project.ingest(sales(600, 900))
            project.wait_until_stored()
            end(later)
    assert project.is_stored()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("failpoint", ["materialize.committing", "materialize.committed"])
def test_superseded_run_stores_nothing_after_a_pause(project: Project, failpoint: str, is_split: bool) -> None:
    """It is paused in its third transaction: rows are on their way, or are committed and not yet noted."""
    with project.run(*LIMITS, failpoint=f"{failpoint}:3:pause") as earlier:
        wait_until_paused(project, earlier)
        if is_split:
            divide(project)
        with project.run(*LIMITS) as later:
            project.wait_until_stored()
            project.ingest(sales(300, 600))
            project.wait_until_stored()
            os.kill(earlier.pid, signal.SIGCONT)
            says_that_it_was_fenced(earlier)
            project.ingest(sales(600, 900))
            project.wait_until_stored()
            end(later)
    assert project.is_stored()


@pytest.mark.sampled(1)
def test_endpoint_fences_a_run_over_a_copied_data_folder(project: Project) -> None:
    """Two data folders know nothing of each other; their endpoint does."""
    copy = Project(project.folder.with_name("copy"), project.endpoint)
    shutil.copytree(project.folder / "data", copy.folder / "data")
    with project.run(*LIMITS) as earlier:
        project.wait_until_stored()
        with copy.run(*LIMITS) as later:
            copy.ingest(sales(300, 600))
            copy.wait_until_stored()
            project.ingest(sales(600, 900))
            wait_until(lambda: "at its endpoint" in project.called("status")[1])
            assert copy.is_stored()
            end(later)
        assert copy.is_stored()
        assert "a run over another data folder materializes into the endpoint" in project.called("status")[1]
        end(earlier)
