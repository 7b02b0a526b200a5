"""What DuckDB alone does: processes that take turns with a file, and numbers that its types do not hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sql_databases import Database, commit, in_duckdb, load, source, stored

from derive.errors import EndpointError

NUMBERS = source({"id": ["integer"]}, {"number": ["fractional", "integer"]})
BINDING = NUMBERS.binding()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return in_duckdb(tmp_path)


def test_other_processes_open_the_file_between_transactions(database: Database) -> None:
    database.apply(BINDING)
    program = f"import duckdb; print(duckdb.connect({database.config['path']!r}).sql('FROM balances').fetchall())"
    with database.session(BINDING) as session:
        commit(session, BINDING, [{"id": 1, "number": 1.5}])
        looked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert looked.stdout.startswith("[(1, 1.5, ")
        assert load(session, [(1,)]) == ['{"id":1,"number":1.5}']


def test_numbers_are_exact_or_refused(database: Database) -> None:
    database.apply(BINDING)
    exact = [0.1, 1e300, 5e-324, 2**70, 2**53, -1]
    with database.session(BINDING) as session:
        commit(session, BINDING, [{"id": index, "number": value} for index, value in enumerate(exact)])
        for number in (2**53 + 1, 10**400):
            with pytest.raises(EndpointError, match="is an integer that no double is equal to"):
                session.store(0, stored(BINDING, [{"id": 9, "number": number}]))
        with pytest.raises(EndpointError, match=r"column 'id' of type HUGEINT, key .*: .* does not fit 128 bits"):
            session.store(0, stored(BINDING, [{"id": 2**127, "number": 1}]))

    assert database.query("SELECT number FROM balances ORDER BY id") == [(float(number),) for number in exact]
