"""A module leads to files of its project and to libraries: to nothing else, however it is spelt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import World, write_catalog

from connectors.derive_typescript.runtime.project import cache_modules
from derive.catalog import load
from derive.catalog.build import check_catalog
from derive.errors import Issue, LambdaError, TaskError

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
      using: {typescript: {files: [code/deno.json, code/mod.ts]}}
      transforms: [{name: fromIn, source: p/in, shuffle: any}]
"""
HEAD = "import { Document, IDerivation, SourceFromIn } from 'flow/p/out.ts';\n"
BODY = """
export class Derivation extends IDerivation {
    async fromIn(read: { doc: SourceFromIn }): Promise<Document[]> {
        return [{ id: read.doc.id, value: VALUE }];
    }
}
"""


def write_project(folder: Path, head: str, value: str = "s", imports: dict[str, str] | None = None) -> Path:
    """A project in `folder/project`, and beside it what it must not read."""
    code = folder / "project" / "code"
    code.mkdir(parents=True)
    (folder / "secret.txt").write_text("s3cret")
    (folder / "secret.json").write_text('{"token": "s3cret"}')
    (folder / "secret.d.ts").write_text("s3cret s3cret;")
    (code / "link.txt").symlink_to(folder / "secret.txt")
    (code / "linked").symlink_to(folder)
    head = head.replace("FOLDER", str(folder))
    (code / "mod.ts").write_text(HEAD + head + BODY.replace("VALUE", value.replace("FOLDER", str(folder))))
    named = {name: target.replace("FOLDER", str(folder)) for name, target in (imports or {}).items()}
    (code / "deno.json").write_text(json.dumps({"imports": named}))
    write_catalog(folder / "project", CATALOG)
    return folder / "project" / "flow.yaml"


def derived(source: Path, data: str = "data") -> list[str]:
    world = World(source.parent / data, load(source))
    world.ingest("p/in", [{"id": 1, "at": "2024-01-01T00:00:00Z"}])
    world.step()
    return [row[3] for row in world.rows("p/out")]


TEXT = "with { type: 'text' }"
DATA = f'import s from "file://FOLDER/secret.txt" {TEXT}; export default s'.replace("'", '\\"').replace('"', "%22")
# What a module imports, and how the import is told; the import map is `{"@/": "../../", "abs/": "FOLDER/"}`.
OUTSIDE = [
    (f"import s from 'FOLDER/secret.txt' {TEXT};", "FOLDER/secret.txt"),
    ("import s from 'FOLDER/secret.json' with { type: 'json' };", "FOLDER/secret.json"),
    (f"import s from 'file://FOLDER/secret.txt' {TEXT};", "file://FOLDER/secret.txt"),
    (f"import s from 'FILE://FOLDER/secret.txt' {TEXT};", "FILE://FOLDER/secret.txt"),
    ("import s from 'FOLDER/secret.txt' with { type: 'bytes' };", "FOLDER/secret.txt"),
    (f"import s from '../../secret.txt' {TEXT};", "../../secret.txt"),
    (f"import s from './{'%2e%2e/' * 40}etc/passwd' {TEXT};", f"./{'%2e%2e/' * 40}etc/passwd"),
    (f"import s from '{'../' * 40}etc/passwd' {TEXT};", f"{'../' * 40}etc/passwd"),
    (f"import s from './\\u002e\\u002e/{'../' * 40}etc/passwd' {TEXT};", f"./../{'../' * 40}etc/passwd"),
    (f"import s from './link.txt' {TEXT};", "./link.txt"),
    (f"import s from './linked/secret.txt' {TEXT};", "./linked/secret.txt"),
    (f"import s from '@/secret.txt' {TEXT};", "@/secret.txt"),
    (f"import s from 'abs/secret.txt' {TEXT};", "abs/secret.txt"),
    (f"import s from 'secret' {TEXT};", "secret"),
    (f"const s = await import('FOLDER/secret.txt', {{ {TEXT.replace('with', 'with:')} }});", "FOLDER/secret.txt"),
    (f"export * as s from 'FOLDER/secret.txt' {TEXT}; const s = 1;", "FOLDER/secret.txt"),
    ("import type { s as S } from 'FOLDER/secret.d.ts'; const s = 1;", "FOLDER/secret.d.ts"),
    ("const s: import('FOLDER/secret.d.ts').S = 1;", "FOLDER/secret.d.ts"),
    ("// @ts-types='FOLDER/secret.d.ts'\nimport s from 'npm:left-pad@1.3.0';", "file://FOLDER/secret.d.ts"),
    ("import s from 'npm:left-pad@1.3.0/../../../secret.txt';", "npm:left-pad@1.3.0/../../../secret.txt"),
    ("import s from 'npm:left-pad@1.3.0/%2e%2e/%2E%2E/secret.txt';", "npm:left-pad@1.3.0/%2e%2e/%2E%2E/secret.txt"),
    (f"import s from 'data:text/javascript,{DATA}';", "file://FOLDER/secret.txt"),
    # The harness, whose clock is the real one.
    (f"import * as s from '{'../' * 9}node/libraries.ts';", f"{'../' * 9}node/libraries.ts"),
    (f"import * as s from '{'../' * 9}main.ts';", f"{'../' * 9}main.ts"),
]
NAMES = {"@/": "../../", "abs/": "FOLDER/", "secret": "file://FOLDER/secret.txt"}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("head", "reporting"), OUTSIDE)
def test_files_outside_the_project_are_refused_unread(tmp_path: Path, head: str, reporting: str) -> None:
    source = write_project(tmp_path, head, imports=NAMES)
    reporting = f"'{reporting.replace('FOLDER', str(tmp_path))}' is neither a file of the project nor a library"
    issues = check_catalog(source).issues
    assert [(each.code, each.message) for each in issues] == [("E535", reporting)]
    assert issues[0].position.file.endswith("mod.ts")
    assert issues[0].position.line in (2, 3)
    with pytest.raises(LambdaError) as caught:
        derived(source)
    assert caught.value.message == f"'p/out': {reporting}"
    assert caught.value.position == issues[0].position
    with pytest.raises(TaskError, match="is neither a file of the project nor a library"):
        cache_modules(load(source).derivations["p/out"])


# Imports that are put together when they run: Deno asks for permission then.
COMPUTED = [
    "await import('FOLDER' + '/secret.txt', { with: { type: 'text' } })",
    "await import(`FOLDER/${'secret'}.json`, { with: { type: 'json' } })",
    "await import('data:text/javascript,' + `DATA`)",
    "await import(URL.createObjectURL(new Blob([`DATA`], { type: 'text/javascript' })))",
    "await new Function('name', 'return import(name)')('FOLDER/secret.json')",
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("value", COMPUTED)
def test_imports_outside_the_module_graph_are_not_read(tmp_path: Path, value: str) -> None:
    code = 'import s from "file://FOLDER/secret.txt" with { type: "text" }; export default s'
    source = write_project(tmp_path, "", value.replace("DATA", code))
    with pytest.raises(LambdaError, match=r"Requires read access|createObjectURL"):
        derived(source)


def test_project_files_are_imported_by_every_name(tmp_path: Path) -> None:
    head = f"""\
import a from './beside.txt' {TEXT};
import b from '../above.json' with {{ type: 'json' }};
import {{ c }} from '@/lib/c.ts';
import d from 'known' {TEXT};
"""
    source = write_project(tmp_path, head, "[a, b, c, d]", {"@/": "../", "known": "./beside.txt", "flow/": "./x/"})
    code = source.parent / "code"
    (code / "beside.txt").write_text("beside")
    (source.parent / "above.json").write_text('["above"]')
    (source.parent / "lib").mkdir()
    (source.parent / "lib/c.ts").write_text("import { d } from './d.ts';\nexport const c = d;\n")
    (source.parent / "lib/d.ts").write_text("export const d = 'far';\n")
    assert not check_catalog(source).issues
    assert derived(source) == ['{"id":1,"value":["beside",["above"],"far","beside"]}']


def test_refused_project_is_checked_again(tmp_path: Path) -> None:
    """The folder that Deno runs in stays; what was found wrong with it must not be forgotten with the process."""
    source = write_project(tmp_path, f"import s from 'FOLDER/secret.txt' {TEXT};")
    for data in ("once", "twice"):
        with pytest.raises(LambdaError, match="is neither a file of the project nor a library"):
            derived(source, data)


def test_refused_module_hides_no_issues_of_others(tmp_path: Path) -> None:
    source = write_project(tmp_path, f"import s from 'FOLDER/secret.txt' {TEXT};")
    other = CATALOG.replace("p/out", "p/other").replace("code/deno.json, code/mod.ts", "other.ts")
    (source.parent / "other.ts").write_text(HEAD.replace("p/out", "p/other") + BODY.replace("VALUE", "read.doc.idd"))
    source.write_text(CATALOG + other.partition("key: [/id]\n")[2])
    issues = {(Path(each.position.file).name, each.code) for each in _issues(source)}
    assert issues == {("mod.ts", "E535"), ("other.ts", "E531")}


def _issues(source: Path) -> tuple[Issue, ...]:
    return tuple(check_catalog(source).issues)
