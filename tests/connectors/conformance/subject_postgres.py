"""Tables in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_databases import postgres
from sql_subject import subject_of
from subject import Subject


def make(folder: Path, _request: pytest.FixtureRequest) -> Subject:
    return subject_of(postgres(folder), holds_nul=False)
