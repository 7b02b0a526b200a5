"""Errors of Python modules that `flowctl check` finds, and the modules in which it finds none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from python_derivation import HEAD, derivation, lambdas

from connectors.derive_python import PythonConnector
from connectors.derive_python.config import ProjectFile, config_of
from derive.protocol.specs import DerivationSpec

pytestmark = pytest.mark.xdist_group("python modules")
SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "kind": {"enum": ["a", "b"]}},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def issues(*specs: DerivationSpec) -> list[tuple[str, int, int, str, str | None]]:
    return [
        (issue.code, issue.position.line, issue.position.column, issue.message, issue.hint)
        for issue in PythonConnector().check(specs)
    ]


# One module with all errors: pyrefly starts once.
WRONG = f"""{HEAD}import nosuch, acme.others; from acme.out import arrow
class Derivation(IDerivation):
    async def from_in(self, read: Request.ReadFromIn) -> Any:
        read.doc.nam
        read.doc.kind == "c"
        yield Document(id=read.doc.name)
        yield Document(id=1, nme="x")
        yield Document(name="x")
    def from_other(self, read: Request.ReadFromOther) -> int:
        return 1
    @arrow
    def by_column(self, batch: Any) -> int:
        return 1
"""


def test_errors_have_places_and_hints() -> None:
    library = "install the library into the environment that runs flowctl, or name its interpreter with 'python'"
    spec = derivation(WRONG, "fromIn", "fromOther", "byColumn", schema=SCHEMA)
    found = issues(spec)
    constructor = "in function 'acme.out.Document.__init__'"
    assert found == [
        ("E531", 3, 8, "Cannot find module 'nosuch'", library),
        ("E531", 3, 16, "Cannot find module 'acme.others'", "the types of 'acme/out' are the package 'acme.out'"),
        ("E531", 6, 9, "Object of class 'SourceFromIn' has no attribute 'nam'", "did you mean 'name'?"),
        ("E531", 8, 27, f"Argument 'str | None' is not assignable to parameter 'id' with type 'int' {constructor}", None),
        ("E531", 9, 30, f"Unexpected keyword argument 'nme' {constructor}", None),
        ("E531", 10, 23, f"Missing argument 'id' {constructor}", None),
        (
            "E531", 11, 9, "Class member 'Derivation.from_other' overrides parent class 'IDerivation' in an inconsistent manner",
            "a method takes 'read', and yields or returns documents; a method with @arrow takes and returns columns",
        ),
        (
            "E531", 14, 40, "the method 'by_column' with @arrow returns 'int', which is no table",
            "return a table of pyarrow, polars or pandas",
        ),
    ]  # fmt: skip


def test_class_without_methods_is_refused_at_the_class() -> None:
    text = f"{HEAD}class Derivation(IDerivation):\n    def from_in(self, read: Any) -> Any: ..."
    assert issues(derivation(text, "fromIn", "fromOther", "fromThird", schema=SCHEMA)) == [
        (
            "E531", 3, 7, f"class 'Derivation' has no method 'from_{name.lower()}' for transform 'from{name}'",
            f"write 'async def from_{name.lower()}(self, read: Request.ReadFrom{name}) -> AsyncIterator[Document]:'",
        )
        for name in ("Other", "Third")
    ]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("class Derivation:\n    pass\n", (1, 7), "'Derivation' does not extend the class 'IDerivation'"),
        ("\nclass Other:\n    pass\n", (1, 1), "the module defines no class 'Derivation'"),
    ],
)
def test_class_that_extends_no_base_is_refused(text: str, at: tuple[int, int], message: str) -> None:
    hint = "write 'class Derivation(IDerivation):' after 'from acme.out import IDerivation'"
    assert issues(derivation(text)) == [("E531", *at, message, hint)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("decorator", "argument", "name"), [("@arrow", "read", "arrow"), ("", "read: Request", "Request")]
)
def test_missing_import_of_a_type_is_named(decorator: str, argument: str, name: str) -> None:
    text = f"{HEAD}class Derivation(IDerivation):\n    {decorator}\n    def from_in(self, {argument}): ...\n"
    text = text.replace("IDerivation, Request", "IDerivation")
    assert [issue[3:] for issue in issues(derivation(text, "fromIn", schema=SCHEMA))] == [
        (f"Could not find name '{name}'", f"write 'from acme.out import {name}'")
    ]


def test_module_with_an_error_of_syntax_has_this_error_only() -> None:
    found = issues(derivation(f"{HEAD}class Derivation(IDerivation:\n    x = (\n"))
    assert [issue[:3] for issue in found] == [("E531", 3, 29), ("E531", 5, 1)]


RIGHT = f"""{HEAD}import pyarrow as pa
import pyarrow.compute as pc
from acme.out import arrow
from helper import double
class Derivation(IDerivation):
    def __init__(self, open: Request.Open):
        super().__init__(open)
        self.state = ConnectorState(updated={{}})
    async def from_in(self, read: Request.ReadFromIn) -> Any:
        if read.doc.kind == "a":
            yield Document(id=double(read.doc.id), name=read.doc.name)
        await self.helper(read)
    @arrow
    def by_column(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.greater(batch["id"], 1))
    @arrow
    async def by_later(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch])
    async def helper(self, read):
        return None
    async def flush(self) -> Any:
        return {{"id": 1}}
    async def start_commit(self, start_commit: Request.StartCommit) -> Response.StartedCommit:
        return Response.StartedCommit(state=ConnectorState(updated={{}}, merge_patch=True))
    async def reset(self) -> None: ...
"""


def test_modules_in_common_forms_have_no_errors_and_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = ProjectFile("helper.py", b"def double(value: int) -> int:\n    return 2 * value\n")
    spec = derivation(RIGHT, "fromIn", "byColumn", "byLater", schema=SCHEMA, files=(helper,))
    assert issues(spec) == []
    monkeypatch.setattr("connectors.derive_python.check._check", lambda spec: pytest.fail("it is checked again"))
    assert issues(spec) == []


def test_config_is_checked_against_its_schema() -> None:
    schema = {"type": "object", "required": ["rate"]}
    [issue] = issues(lambdas("return None", config={"rat": 1}, config_schema=schema))
    assert issue[0] == "E018"
    assert issue[3] == "'config' of 'acme/out' is not valid under its schema: \"rate\" is a required property"


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (["fromIn", "from_in"], "transforms 'fromIn' and 'from_in' would both be the method 'from_in'"),
        (["flush"], "transform 'flush' would be the method 'flush', which the runtime reserves"),
        (["startCommit"], "transform 'startCommit' would be the method 'start_commit', which the runtime reserves"),
    ],
)
def test_transforms_without_a_method_of_their_own_are_refused(transforms: list[str], message: str) -> None:
    spec = replace(derivation("", *transforms))
    assert [issue[3] for issue in issues(spec)] == [message]


def test_files_that_hide_the_package_of_types_are_checked() -> None:
    package = ProjectFile("acme/__init__.py", b"NUMBER = 3\n")
    beside = lambdas("return {'id': acme.NUMBER}", head="import acme\n", files=(package,))
    hidden = lambdas("return {'id': 1}")
    assert issues(beside, replace(hidden, connector_config=replace(config_of(hidden), path="acme.py"))) == []
