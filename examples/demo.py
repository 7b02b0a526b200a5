"""The demo: two examples, from raw data to derived collections on Spark, with the commands a person would type."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEMO = ROOT / ".demo"
CATALOG = """\
import:
  - ../examples/acmebank/flow.yaml
  - ../examples/flights/flow.yaml
"""
COMMAND = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"


def run(*arguments: str, lines: int | None = None) -> None:
    """Show and run a command; `lines` limits how much of its output is shown."""
    print(f"\n$ {' '.join(_quoted(each) for each in arguments)}", flush=True)
    command = [sys.executable, *arguments[1:]] if arguments[0] == "python" else list(arguments)
    if arguments[0] == "flowctl":
        command = [sys.executable, "-c", COMMAND, *arguments[1:]]
    environment = {**os.environ, "FLOW_SOURCE": ".demo/flow.yaml", "PYTHONUNBUFFERED": "1"}
    environment.pop("FLOW_DATA", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, text=True, stdout=None if lines is None else subprocess.PIPE
    )
    if done.returncode:
        sys.exit(done.returncode)
    if lines is not None:
        shown = done.stdout.splitlines()
        print("\n".join(shown[:lines]))
        if len(shown) > lines:
            print(f"… {len(shown) - lines:,} more")


def _quoted(text: str) -> str:
    return f"'{text}'" if any(each in text for each in ' {"') else text


def main() -> None:
    """Load, run, and look."""
    shutil.rmtree(DEMO, ignore_errors=True)
    DEMO.mkdir()
    (DEMO / "flow.yaml").write_text(CATALOG)
    transfers = DEMO / "transfers.jsonl"
    print("AcmeBank: 100,000 generated transfers between 5,000 accounts.")
    with transfers.open("wb") as file:
        subprocess.run([sys.executable, "examples/acmebank/generate.py"], cwd=ROOT, stdout=file, check=True)
    print("Flights: all 336,776 departures from New York City in 2013.")
    folder = ".demo/flights"
    run("python", "examples/flights/load.py", folder)
    run("flowctl", "ingest", "--collection", "acmeBank/transfers", "--clock", "/at", ".demo/transfers.jsonl")
    run("flowctl", "ingest", "--collection", "flights/weather", "--clock", "/hour", f"{folder}/weather.jsonl")
    run("flowctl", "ingest", "--collection", "flights/flights", "--clock", "/scheduled", f"{folder}/flights.jsonl")
    run("flowctl", "run", "--until-idle")
    run("python", "examples/check.py", ".demo")
    run("flowctl", "status", "-o", "table")
    run("flowctl", "collections", "read", "--collection", "acmeBank/balances", "--reduce", lines=3)
    denied = '{"include": {"outcome": ["deny"]}}'
    outcomes = "acmeBank/transfer-outcomes"
    run("flowctl", "collections", "read", "--collection", outcomes, "--partitions", denied, lines=3)
    run("flowctl", "collections", "read", "--collection", "flights/daily-carrier-stats", "--reduce", lines=3)
    run(
        "flowctl",
        "collections",
        "read",
        "--collection",
        "flights/idle-aircraft",
        "--as-of",
        "2013-01-31T00:00:00Z",
        lines=3,
    )
    print("\nLook around with: FLOW_SOURCE=.demo/flow.yaml .venv/bin/flowctl collections list")


if __name__ == "__main__":
    main()
