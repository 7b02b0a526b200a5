"""Deno agrees: types accept the documents that their schemas do, and refuse a required property of a wrong type.

A run of Deno takes a second or more, so one run looks at many schemas, and a failure is not made smaller: what fails
is named by the schema beside it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from conftest import examples
from hypothesis import HealthCheck, Phase, given, settings
from typed_schemas import Batch, Case, batches

from connectors.derive_typescript.author_files import declare
from connectors.derive_typescript.runtime.command import deno, environment
from derive.schema.validator import compile_validator

pytestmark = pytest.mark.deno


def program(found: list[Case]) -> str:
    """Each document as a constant of its schema's type, and each wrong one where an error is expected."""
    taken = {f"D{place}" for place in range(len(found))}
    lines = []
    for place, case in enumerate(found):
        lines += [f"// {json.dumps(case.schema)}", *declare(case.schema, f"D{place}", taken)]
        for number, document in enumerate(case.documents):
            lines.append(f"export const d{place}_{number}: D{place} = {json.dumps(document)};")
        lines += ["// @ts-expect-error: its property 'must' has the wrong type"]
        lines += [f"export const wrong{place}: D{place} = {json.dumps(case.wrong)};"]
    return "\n".join(lines) + "\n"


@settings(
    max_examples=examples(4, 1),
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
)
@given(batch=batches(40))
def test_deno_accepts_exactly_valid_documents(batch: Batch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for case in batch.cases:
        validator = compile_validator(case.schema, name="x")
        assert all(validator.is_valid(each) for each in case.documents)
        assert not validator.is_valid(case.wrong)
    folder = tmp_path_factory.mktemp("deno")
    (folder / "all.ts").write_text(program(batch.cases), encoding="utf-8")
    done = subprocess.run(
        [deno(), "check", "--quiet", "all.ts"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, said(folder / "all.ts", done.stderr)


def said(path: Path, stderr: str) -> str:
    """What Deno says, shortened."""
    return stderr.replace(str(path), "all.ts")[:3_000]
