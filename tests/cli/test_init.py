"""What `flowctl init` writes works, and it harms nothing that is there."""

from pathlib import Path

import orjson
import pytest
from conftest import World
from forked_flowctl import flowctl
from reduction_oracle import contents_in_memory

from derive.catalog import load
from derive.catalog.build import require_sound
from derive.cli.init import SAMPLES, write_files
from derive.contents.reads import ReadOptions, read_rows
from derive.errors import FlowError, UsageError
from derive.storage.ingest import Ingestion
from derive.storage.inputs.line import json_lines
from derive.testing import run_tests

FILES = SAMPLES["sql"].files
NAMES = ["flow.yaml", "orders.schema.yaml", "customers.sql", "orders.jsonl", "README.md"]
PYTHON_NAMES = ["flow.yaml", "orders.schema.yaml", "receipts.py", "orders.jsonl", "README.md"]
CUSTOMERS = [
    '{"customer":"ann","first_order":1,"orders":2,"spent":19.75}',
    '{"customer":"ben","first_order":2,"orders":2,"spent":42.25}',
]
RECEIPTS = [
    '{"customer":"ann","id":1,"number":1,"spent":12.5}',
    '{"customer":"ben","id":2,"number":1,"spent":40}',
    '{"customer":"ann","id":3,"number":2,"spent":19.75}',
    '{"customer":"ben","id":5,"number":2,"spent":42.25}',
]


@pytest.mark.parametrize(
    ("options", "names", "steps"),
    [
        ([], NAMES, "flowctl check|flowctl collections read --collection shop/customers --reduce"),
        (["--language", "sql"], NAMES, "flowctl check|flowctl collections read --collection shop/customers --reduce"),
        (
            ["--language=python"],
            PYTHON_NAMES,
            "flowctl generate|flowctl check|flowctl collections read --collection shop/receipts",
        ),
    ],
)
def test_init_prints_written_files_and_next_steps(
    options: list[str], names: list[str], steps: str, tmp_path: Path
) -> None:
    status, out, err = flowctl(tmp_path, "init", *options, "my shop")

    *checks, read = steps.split("|")
    assert status == 0
    assert out.splitlines() == [f"my shop/{name}" for name in names]
    assert sorted(each.name for each in (tmp_path / "my shop").iterdir()) == sorted(names)
    assert err.splitlines() == [
        "Next:",
        "  cd 'my shop'",
        *(f"  {step}" for step in checks),
        "  flowctl test",
        "  flowctl ingest --collection shop/orders orders.jsonl",
        "  flowctl run --until-idle",
        f"  {read}",
    ]


def test_init_refuses_an_unknown_language(tmp_path: Path) -> None:
    status, out, err = flowctl(tmp_path, "init", "--language", "cobol")

    assert (status, out) == (2, "")
    assert "'cobol' is not one of 'sql', 'python'" in err
    status, _, err = flowctl(tmp_path, "init", "--language", "typescript")
    assert (status, "docs/typescript.md" in err) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("language", SAMPLES)
def test_next_steps_of_init_succeed(language: str, tmp_path: Path) -> None:
    assert flowctl(tmp_path, "init", "--language", language)[0] == 0

    if language == "python":
        types = '{"what":"created","file":"flow_generated/python/shop/receipts/__init__.py"}'
        assert flowctl(tmp_path, "generate")[:2] == (0, types + "\n")
    assert flowctl(tmp_path, "check") == (0, "", "flow.yaml: 2 collections, 1 derivation, no errors\n")
    status, out, _ = flowctl(tmp_path, "test")
    assert (status, out.splitlines()[-1][:8]) == (0, "1 passed")
    status, _, err = flowctl(tmp_path, "ingest", "--collection", "shop/orders", "orders.jsonl")
    assert (status, " ".join(err.split()[:3])) == (0, "orders.jsonl 5 documents")


@pytest.mark.parametrize(
    ("language", "derived", "expected"),
    [("sql", "shop/customers", CUSTOMERS), ("python", "shop/receipts", RECEIPTS)],
)
def test_sample_of_init_derives_the_documents_of_its_readme(
    language: str, derived: str, expected: list[str], tmp_path: Path, empty_pool: None
) -> None:
    write_files(tmp_path, SAMPLES[language].files)
    catalog = load(tmp_path / "flow.yaml")
    world = World(tmp_path / "data", catalog)
    with (tmp_path / "orders.jsonl").open("rb") as stream:
        Ingestion(world.store, catalog.collections["shop/orders"]).load("orders.jsonl", json_lines(stream))

    world.wall += 10_000_000  # so that the tick of the orders is over
    world.step()

    spec = catalog.collections[derived]
    rows = read_rows(world.store, spec, ReadOptions())
    documents = [orjson.dumps(document).decode() for _, document in contents_in_memory(spec, rows)]
    assert documents == expected
    assert "\n".join(documents) in SAMPLES[language].files["README.md"]


def test_test_of_init_fails_for_a_wrong_lambda(tmp_path: Path) -> None:
    write_files(tmp_path, {**FILES, "customers.sql": FILES["customers.sql"].replace("'placed'", "'cancelled'")})
    catalog = load(tmp_path / "flow.yaml")

    require_sound(catalog)
    assert [each.failure is None for each in run_tests(catalog)] == [False]


@pytest.mark.parametrize("name", NAMES)
def test_init_writes_nothing_where_a_file_exists(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")

    status, out, err = flowctl(tmp_path, "init", ".")

    assert (status, out) == (2, "")
    assert f"already has {name}" in err
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_init_treats_a_dangling_link_as_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UsageError, match="already has flow.yaml"):
        write_files(tmp_path, FILES)
    assert not (tmp_path / "elsewhere").exists()


def test_init_keeps_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    assert flowctl(tmp_path, "init")[0] == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_init_refuses_a_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")

    status, out, err = flowctl(tmp_path, "init", "taken")

    assert (status, out) == (2, "")
    assert "taken is a file, not a folder" in err


def test_init_leaves_nothing_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="cannot write into"):
        write_files(tmp_path, {"first.yaml": "{}", "no/such/folder.yaml": "{}"})

    assert list(tmp_path.iterdir()) == []
