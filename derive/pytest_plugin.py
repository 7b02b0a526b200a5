"""A plugin of pytest: tests of catalogs are items, and a fixture runs a catalog in Python.

pytest collects the tests of a catalog that is named on its command line, or in the setting `flow_catalogs`. Everything
else of this package is imported when a catalog is collected, or when a test uses the fixture, so that the plugin costs
nothing in other projects.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from derive.protocol.specs import CatalogSpec, TestSpec
    from derive.testing import CatalogSession

_PACKAGE = Path(__file__).parent

_LOADED = pytest.StashKey[dict[Path, "CatalogSpec"]]()


class OpenCatalog(Protocol):
    """The value of the fixture `flow_catalog`."""

    def __call__(self, source: str | Path = "flow.yaml", *, begin: str | None = None) -> CatalogSession:
        """Return a session with a catalog, which is closed after the test.

        Args:
            source: the root file, relative to the folder of the test.
            begin: beginning of the time, RFC 3339; None for a session without times.

        Raises:
            CatalogError: the catalog is wrong.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings."""
    parser.addini("flow_catalogs", "Root files of catalogs whose tests pytest collects, such as flow.yaml.", "args")
    parser.addini(
        "flow_strict", "Refuse properties and items that a verify step does not mention.", "bool", default=False
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the tests of a catalog that is named on the command line or in the settings."""
    if file_path.suffix not in {".yaml", ".yml", ".json"}:
        return None
    config = parent.config
    named = {(config.invocation_params.dir / str(argument).partition("::")[0]).resolve() for argument in config.args}
    patterns = config.getini("flow_catalogs")
    if file_path.resolve() in named or any(file_path.match(pattern) for pattern in patterns):
        return _CatalogFile.from_parent(parent, path=file_path)
    return None


def _load(config: pytest.Config, path: Path) -> CatalogSpec:
    """Return the catalog of a root file, which is loaded once."""
    from derive.catalog import load
    from derive.catalog.build import require_sound

    loaded = config.stash.setdefault(_LOADED, {})
    if path not in loaded:
        loaded[path] = load(path)
        require_sound(loaded[path])
    return loaded[path]


class _CatalogFile(pytest.File):
    """A catalog."""

    def collect(self) -> Iterator[pytest.Item]:
        from derive.cli.console import render_error
        from derive.errors import FlowError

        try:
            catalog = _load(self.config, self.path)
        except FlowError as error:
            raise self.CollectError(render_error(error)) from error
        for test in sorted(catalog.tests.values(), key=lambda test: test.position):
            yield _CatalogItem.from_parent(self, name=test.name, catalog=catalog, test=test)


class _FailedTestError(Exception):
    """A test of a catalog has failed; the text has the reason."""


class _CatalogItem(pytest.Item):
    """A test of a catalog."""

    def __init__(self, *, catalog: CatalogSpec, test: TestSpec, **options: Any) -> None:
        super().__init__(**options)
        self._catalog, self._test = catalog, test

    def runtest(self) -> None:
        from derive.cli.test_results import render_failure
        from derive.testing import run_test

        result = run_test(self._catalog, self._test, strict=self.config.getini("flow_strict"))
        if result.messages:
            output = "\n".join(f"{entry['task']}: {entry['message']}" for entry in result.messages)
            self.add_report_section("call", "lambdas", output)
        if result.failure is not None:
            raise _FailedTestError(render_failure(result.failure))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the differences as text, without a traceback."""
        if isinstance(excinfo.value, _FailedTestError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the file, the line from 0, and the name of the test."""
        position = self._test.position
        return Path(position.file).absolute(), position.line - 1, self.name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Show an error of a session at the line of the test that caused it, without the frames of this package."""
    try:
        yield
    except Exception as error:
        if "flow_catalog" in getattr(item, "fixturenames", ()):
            _cut(error.__traceback__)
        raise


def _cut(traceback: TracebackType | None) -> None:
    """Remove the frames of this package from the end of a traceback, if an error of this package is raised there."""
    last = None
    while traceback is not None:
        if not Path(traceback.tb_frame.f_code.co_filename).is_relative_to(_PACKAGE):
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None


@pytest.fixture
def flow_catalog(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenCatalog]:
    """Open catalogs in virtual time: `flow_catalog("flow.yaml").ingest("shop/orders", [...])`."""
    from derive.testing import CatalogSession

    sessions: list[CatalogSession] = []

    def opened(source: str | Path = "flow.yaml", *, begin: str | None = None) -> CatalogSession:
        catalog = _load(request.config, request.path.parent / source)
        sessions.append(CatalogSession(catalog, tmp_path_factory.mktemp("flow"), begin=begin))
        return sessions[-1]

    try:
        yield opened
    finally:
        for session in sessions:
            session.close()
