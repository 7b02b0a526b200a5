"""Tables in SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_databases import sqlite
from sql_subject import subject_of
from subject import Subject


def make(folder: Path, _request: pytest.FixtureRequest) -> Subject:
    return subject_of(sqlite(folder))
