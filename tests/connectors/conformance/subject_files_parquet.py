"""Files of Parquet."""

from pathlib import Path

import pytest
from files_endpoint import files
from subject import Subject


def make(folder: Path, request: pytest.FixtureRequest) -> Subject:
    return files(folder, "parquet")
