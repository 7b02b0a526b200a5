"""The README and its like cannot lie: its catalog passes its own tests, and the files that they name exist."""

import re
from pathlib import Path

import pytest

from derive.catalog import load
from derive.testing.driver import run_tests

REPOSITORY = Path(__file__).parents[2]


def test_the_catalog_of_the_readme_passes_its_test(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    catalog, materializations = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "flow.yaml").write_text(catalog + materializations, encoding="utf-8")
    built = load(tmp_path / "flow.yaml")

    results = list(run_tests(built))

    assert [(each.test.name, each.failure) for each in results] == [("shop/tests/spending", None)]
    assert list(built.materializations) == ["shop/reports"]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/typescript.md"])
def test_named_files_exist(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    folders = "derive|connectors|tests|docs|examples|bench"
    named = {REPOSITORY / name for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", text)}
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    named |= {(REPOSITORY / document).parent / link for link in links if link}

    assert named
    assert [path for path in sorted(named) if not path.exists()] == []


def test_the_page_of_the_architecture_names_what_is_there() -> None:
    text = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w.]+)`\s+(?:in|of)\s+`((?:derive|connectors)/[\w/]+\.py)`", text)

    assert len(named) > 3
    for name, path in named:
        defined = rf"(?m)\b(def|class) {name.rpartition('.')[2]}\b|^{name}\b.* = "
        assert re.search(defined, (REPOSITORY / path).read_text("utf-8")), name
