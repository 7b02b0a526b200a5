"""What a module may use and touch: files beside it, WebAssembly, libraries fetched before, and what it is granted."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import World, write_catalog

from connectors.derive_typescript.config import config_of
from connectors.derive_typescript.runtime.command import cache_folder
from connectors.derive_typescript.runtime.project import cache_modules
from connectors.module_kit.process import POOL
from derive.catalog import load
from derive.catalog.build import check_catalog
from derive.errors import CatalogError, LambdaError, TaskError
from derive.protocol.specs import CatalogSpec, LambdaLimits

pytestmark = [pytest.mark.deno, pytest.mark.usefixtures("empty_pool")]

CATALOG = """
collections:
  p/in:
    schema: {type: object, required: [id, at], properties: {id: {type: integer}, at: {type: string}}}
    key: [/id]
  p/out:
    schema: {type: object, required: [id], properties: {id: {type: integer}, value: {}}}
    key: [/id]
    derive:
      using: {typescript: {module: lambdas/out.ts%s}}
      transforms: [{name: fromIn, source: p/in, shuffle: any}]
"""
HEAD = "import { Document, IDerivation, SourceFromIn } from 'flow/p/out.ts';\n"
BODY = """
export class Derivation extends IDerivation {
    fromIn(read: { doc: SourceFromIn }): Document[] {
        return [{ id: read.doc.id, value: VALUE }];
    }
}
"""

# (module (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add))
WASM = bytes.fromhex("0061736d0100000001070160027f7f017f030201000707010361646400000a09010700200020016a0b")


def catalog(folder: Path, head: str, value: str, permissions: str = "", **files: str | bytes) -> CatalogSpec:
    """A catalog whose module computes a value; `files` are named with `__` for `.` and `_in_` for `/`."""
    module = HEAD + dedent(head) + BODY.replace("VALUE", value)
    for name, content in {**files, "lambdas_in_out__ts": module}.items():
        path = folder / name.replace("_in_", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else dedent(content).encode())
    return load(write_catalog(folder, CATALOG % permissions))


def values(spec: CatalogSpec, folder: Path) -> list[str]:
    world = World(folder / "data", spec)
    world.ingest("p/in", [{"id": 1, "at": "2024-01-01T00:00:00Z"}])
    world.step()
    return [row[3] for row in world.rows("p/out")]


def test_module_imports_files_beside_it_and_above(tmp_path: Path) -> None:
    spec = catalog(
        tmp_path,
        """\
        import { twice } from './lib/twice.ts';
        import rates from '../rates.json' with { type: 'json' };
        export const ONE = 1;
        """,
        "twice(rates.euro)",
        lambdas_in_lib_in_twice__ts="""\
            import { base } from "../../shared.ts";
            import { ONE } from '../out.ts';
            export const twice = (value: number): number => 2 * value + base * ONE;
            """,
        shared__ts="export const base = 100;",
        rates__json='{"euro": 4}',
    )
    assert [each.path for each in config_of(spec.derivations["p/out"]).imports] == [
        "../rates.json",
        "../shared.ts",
        "lib/twice.ts",
        "out.ts",
    ]
    assert not check_catalog(tmp_path / "flow.yaml").issues
    assert values(spec, tmp_path) == ['{"id":1,"value":108}']


def test_errors_in_imported_files_have_their_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    broken = "// a comment\nexport function lib(): number {\n    throw new Error('not today');\n}\n"
    spec = catalog(Path(), "import { lib } from './lib.ts';\n", "lib()", lambdas_in_lib__ts=broken)
    with pytest.raises(LambdaError) as caught:
        values(spec, tmp_path)
    assert str(caught.value).startswith(
        "lambdas/lib.ts:3:11: transform 'fromIn' of 'p/out' failed: Error: not today; the document was"
    )
    Path("lambdas/lib.ts").write_text(broken.replace("'not today'", "7"))
    [issue] = check_catalog("flow.yaml").issues
    assert str(issue.position) == "lambdas/lib.ts:3:21"
    assert "'number' is not assignable to parameter of type 'string'" in issue.message


def test_missing_module_is_reported_at_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    catalog(Path(), "import { lib } from './missing.ts';\n", "lib()")
    [issue] = check_catalog("flow.yaml").issues
    assert issue.position.file == "lambdas/out.ts"
    assert "lambdas/missing.ts" in issue.message


def test_module_loads_webassembly_beside_it(tmp_path: Path) -> None:
    spec = catalog(tmp_path, "import { add } from './add.wasm';\n", "add(40, 2)", lambdas_in_add__wasm=WASM)
    assert not check_catalog(tmp_path / "flow.yaml").issues
    assert values(spec, tmp_path) == ['{"id":1,"value":42}']


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["npm:left-pad@1.3.0", "pad"])
def test_library_is_fetched_by_generate_and_not_by_a_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DENO_DIR", str(tmp_path / "deno"))
    cache_folder.cache_clear()
    try:
        head = f"import leftPad from '{name}';\n"
        settings = '{"imports": {"pad": "npm:left-pad@1.3.0", "@/": "./src/"}, /* */}'
        spec = catalog(tmp_path, head, "leftPad('7', 3, '0')", deno__jsonc=settings)
        with pytest.raises(LambdaError) as caught:
            values(spec, tmp_path / "before")
        assert "npm package" in caught.value.message
        assert caught.value.hint == "fetch libraries ahead of time: flowctl generate --cache"
        fetched = cache_modules(spec.derivations["p/out"])
        assert any("left-pad" in each for each in fetched)
        assert not check_catalog(tmp_path / "flow.yaml").issues
        assert values(spec, tmp_path / "after") == ['{"id":1,"value":"007"}']
    finally:
        cache_folder.cache_clear()


def test_a_library_that_does_not_exist_cannot_be_fetched(tmp_path: Path) -> None:
    spec = catalog(tmp_path, "import x from 'npm:left-pad@99.99.99';\n", "x")
    with pytest.raises(TaskError, match="libraries of 'p/out' cannot be fetched: .*left-pad") as caught:
        cache_modules(spec.derivations["p/out"])
    assert caught.value.position is not None
    assert caught.value.position.file.endswith("lambdas/out.ts")


def test_permissions_are_granted_by_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_TEST_VALUE", "seen")
    monkeypatch.setenv("FLOW_TEST_OTHER", "hidden")
    (tmp_path / "granted").mkdir()
    (tmp_path / "granted/text.txt").write_text("text")
    path = os.fspath(tmp_path / "granted/text.txt")
    spec = catalog(
        tmp_path,
        "",
        f"Deno.env.get('FLOW_TEST_VALUE') + Deno.readTextFileSync('{path}') + Deno.readTextFileSync('granted/text.txt')",
        ", permissions: {read: [granted], env: [FLOW_TEST_VALUE], net: ['localhost:1']}",
    )
    asked = config_of(spec.derivations["p/out"]).permissions
    assert (asked.read, asked.env, asked.net) == (
        (os.fspath(tmp_path / "granted"),),
        ("FLOW_TEST_VALUE",),
        ("localhost:1",),
    )
    with pytest.raises(LambdaError, match="the module of 'p/out' asks for permissions: net") as caught:
        values(spec, tmp_path / "refused")
    assert caught.value.hint == "if you trust the module, add --allow-permissions"
    assert caught.value.position is not None
    assert caught.value.position.line == 10
    assert values(spec.within(LambdaLimits(allows_permissions=True)), tmp_path / "given") == [
        '{"id":1,"value":"seentexttext"}'
    ]


# What is asked for, and what is tried.
BEYOND = [
    ("{env: [FLOW_TEST_VALUE]}", "Deno.env.get('FLOW_TEST_OTHER')", "Requires env access"),
    ("{read: [granted]}", "Deno.readTextFileSync('/etc/passwd')", "Requires read access"),
    ("{net: ['localhost:1']}", "Deno.listen({ hostname: 'localhost', port: 2 })", "Requires net access"),
    ("{}", "Deno.env.get('FLOW_TEST_VALUE')", "Requires env access"),
    ("{net: [], read: [], env: []}", "Deno.env.get('FLOW_TEST_VALUE')", "Requires env access"),
]


@pytest.mark.parametrize(("permissions", "value", "reason"), BEYOND)
def test_permissions_beyond_the_list_are_denied(tmp_path: Path, permissions: str, value: str, reason: str) -> None:
    spec = catalog(tmp_path, "", value, f", permissions: {permissions}").within(LambdaLimits(allows_permissions=True))
    with pytest.raises(LambdaError, match=reason):
        values(spec, tmp_path)


# Values that would be something else on Deno's command line, where commas divide and nothing means everything.
REFUSED = [
    ("{net: ['']}", "this value is not a host such as 'example.com:443'"),
    ("{net: ['a,b']}", "this value is not a host such as 'example.com:443'"),
    ("{read: ['a,/etc']}", "this value is not the path of a file or folder"),
    ("{env: ['*']}", "this value is not the name of an environment variable"),
    ("{run: [sh]}", "'permissions' has no property 'run'"),
]


@pytest.mark.parametrize(("permissions", "message"), REFUSED)
def test_permissions_are_lists_of_plain_names(tmp_path: Path, permissions: str, message: str) -> None:
    with pytest.raises(CatalogError) as caught:
        catalog(tmp_path, "", "1", f", permissions: {permissions}")
    assert message in caught.value.issues[0].message


def test_library_gets_random_values_of_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This library's own imports are `{ randomUUID } from 'crypto'` and `{ randomFillSync } from 'crypto'`, for 256 bytes."""
    monkeypatch.setenv("DENO_DIR", str(tmp_path / "deno"))
    cache_folder.cache_clear()
    try:
        head = "import { v4, v1 } from 'npm:uuid@11.1.0';\n"
        spec = catalog(tmp_path, head, "[v4(), v4({ random: new Uint8Array(16) })]")
        cache_modules(spec.derivations["p/out"])
        once = values(spec, tmp_path / "once")
        POOL.close()
        assert values(spec, tmp_path / "again") == once
        ahead = catalog(tmp_path, head, "v1()")
        with pytest.raises(LambdaError, match="a library fetches 256 random bytes at once"):
            values(ahead, tmp_path / "ahead")
    finally:
        cache_folder.cache_clear()
