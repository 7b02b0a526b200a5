"""A script ends the commands that it starts, also where Ctrl-C is ignored, as in background jobs of a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_script import EXAMPLES, import_script
from patience import PATIENCE_SECONDS

demo = import_script("demo.py")
ROOT = EXAMPLES.parent
STOPPED = "stopped; the next run continues after the last commit"
CATALOG = """
collections:
  a/events: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  a/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: a/events, shuffle: any, lambda: SELECT $id;}]}
"""


@pytest.fixture
def deaf_to_interrupts() -> Iterator[None]:
    """This process ignores Ctrl-C, as the background job of a shell, and what it starts inherits that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "flow.yaml").write_text(CATALOG)
    program = [sys.executable, "-m", "derive.cli.main", *arguments]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(program, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("deaf_to_interrupts")
@pytest.mark.parametrize(
    ("arguments", "begun", "ended"),
    [
        (["run", "--watch", "--local-documents", "9"], "running 1 task", STOPPED),
        (["sql", "serve", "--listen", "127.0.0.1:0"], "serving SQL", ""),
        (["collections", "read", "--collection", "a/events", "--follow"], "1 document before", "stopped; resume with"),
    ],
    ids=["run --watch", "sql serve", "read --follow"],
)
def test_demo_ends_commands_that_ignore_interrupts(
    tmp_path: Path, arguments: list[str], begun: str, ended: str
) -> None:
    with start(tmp_path, "ingest", "--collection", "a/events", "-") as ingesting:
        ingesting.communicate('{"id": 1}\n')
    with start(tmp_path, *arguments) as process:
        assert process.stderr is not None
        while begun not in (line := process.stderr.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGINT)  # which it does not notice

        demo.end(process, PATIENCE_SECONDS)

        text = process.stderr.read()
        assert (process.returncode, ended in text) == (0, True), text


def test_commands_that_do_not_end_are_killed(capsys: pytest.CaptureFixture[str]) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"

        demo.end(process, 0.1)

        assert process.returncode == -signal.SIGKILL
    assert "has not ended in 0 s, and was killed" in capsys.readouterr().err


def test_no_script_relies_on_ctrl_c_to_end_a_command() -> None:
    """PostgreSQL handles SIGINT whatever it inherits, and means something else by SIGTERM."""
    scripts = [*EXAMPLES.rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    assert len(scripts) > 20
    assert [script.name for script in scripts if "SIGINT" in script.read_text()] == ["postgres.py"]
