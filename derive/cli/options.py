"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from derive.cli.pasting import give

if TYPE_CHECKING:
    from derive.catalog.loading import Resources
    from derive.protocol.specs import CatalogSpec, LambdaLimits
    from derive.storage.metadata.place import Place
    from derive.storage.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])

_URL = "derive.url"
"""Key of the URL that was given as the data folder, in the metadata of a context of click."""


def _give(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Record an option of the command line for the commands in hints; the environment holds for them, too."""
    from click.core import ParameterSource

    is_given = option.name is not None and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    text = context.meta.get(_URL) if option.name == "data" else None
    give(option.opts[0], (text or str(value)) if is_given else None)
    return value


source_option = click.option(
    "--source",
    callback=_give,
    envvar="FLOW_SOURCE",
    default="flow.yaml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The catalog's root file.",
)


class DataFolder(click.Path):
    """A parameter that is the path of a data folder, or the URL of its segments if its metadata is in PostgreSQL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; for a URL, the path of the folder of this machine."""
        if not str(value):
            self.fail("a data folder has a name; '.' is the present folder", param, ctx)
        if os.path.isfile(value):
            self.fail(f"{value} is a file, and a data folder is needed, such as .flow", param, ctx)
        if ":/" in str(value) and not (ctx and ctx.resilient_parsing):
            from derive.storage.location import ObjectFolder, is_url, require_folder

            place = named_metadata()
            if ctx is not None:
                ctx.meta[_URL] = str(value)
            if place is None:
                require_folder(value)
            elif is_url(value):
                from derive.storage.metadata.location import work_folder

                value = work_folder(ObjectFolder.of(str(value)), place)
        return super().convert(value, param, ctx)


data_option = click.option(
    "--data",
    callback=_give,
    envvar="FLOW_DATA",
    type=DataFolder(path_type=Path, file_okay=False),
    help="The data folder; with --metadata, also a URL such as s3://bucket/prefix.  [default: .flow beside the source;"
    " env FLOW_DATA]",
)


def _name_metadata(_context: click.Context, _option: click.Parameter, url: str | None) -> None:
    """Let this process and its children use an address, which may have a password that `metadata.json` lacks."""
    if url is not None:
        from derive.storage.metadata.place import VARIABLE, place_of

        place_of(url)
        os.environ[VARIABLE] = url


metadata_option = click.option(
    "--metadata",
    envvar="FLOW_METADATA",
    metavar="URL",
    is_eager=True,  # a URL of the data folder needs it
    expose_value=False,
    callback=_name_metadata,
    help="PostgreSQL database with the metadata of the data folder, which several machines then share; named when the"
    " folder is created.  [default: a file in the data folder; env FLOW_METADATA]",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    help="Format of the output.  [default: table on a terminal, json otherwise]",
)
wide_option = click.option("--wide", is_flag=True, help="Show all columns of tables; as records if they do not fit.")
quiet_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, is_given: _be_quiet() if is_given else None,
    help="Print only data, warnings and errors: no progress and no notes.",
)
local_option = click.option(
    "--local-documents",
    type=click.IntRange(min=0),
    metavar="N",
    help="Process at most N documents in this process, and more with Spark; 0 for Spark alone."
    "  [default: by the cost of Spark here]",
)


_LIMITS = (
    click.option(
        "--sqlite-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Time limit of SQL for one document.",
    ),
    click.option(
        "--sqlite-memory",
        type=click.IntRange(64, 1_048_576),
        default=1024,
        show_default=True,
        metavar="MB",
        help="Memory limit of SQL for one document.",
    ),
    click.option(
        "--deno-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Time limit of a TypeScript module for one document.",
    ),
    click.option(
        "--deno-heap",
        type=click.IntRange(16, 65_536),
        default=512,
        show_default=True,
        metavar="MB",
        help="Heap limit of a TypeScript module.",
    ),
    click.option(
        "--python-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Time limit of a Python module for one document.",
    ),
    click.option(
        "--python-memory",
        type=click.IntRange(64, 1_048_576),
        default=2048,
        show_default=True,
        metavar="MB",
        help="Memory limit of a Python module.",
    ),
    click.option("--allow-permissions", is_flag=True, help="Grant modules the permissions that the catalog lists."),
)


def _be_quiet() -> None:
    from derive.cli.console import use_quiet

    use_quiet()


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options that limit the resources and permissions of lambdas; the command gets them as `lambda_limits`."""

    @wraps(command)
    def limited(
        *,
        sqlite_timeout: float,
        sqlite_memory: int,
        deno_timeout: float,
        deno_heap: int,
        python_timeout: float,
        python_memory: int,
        allow_permissions: bool,
        **others: Any,
    ) -> None:
        from derive.protocol.specs import LambdaLimits

        limits = LambdaLimits(
            answer_seconds=deno_timeout,
            heap_megabytes=deno_heap,
            allows_permissions=allow_permissions,
            sqlite_seconds=sqlite_timeout,
            sqlite_megabytes=sqlite_memory,
            python_seconds=python_timeout,
            python_megabytes=python_memory,
        )
        command(**others, lambda_limits=limits)

    for option in reversed(_LIMITS):
        limited = option(limited)
    return limited


def limited_catalog(
    source: Path, lambda_limits: LambdaLimits, resources: Resources | None = None, *, with_tests: bool = True
) -> CatalogSpec:
    """Load a catalog and limit its lambdas.

    Args:
        source: the catalog's root file.
        lambda_limits: the limits.
        resources: loads the files.
        with_tests: whether to load the catalog's tests; if so, an error in a test is raised.

    Raises:
        CatalogError: the catalog is wrong, or a module asks for permissions that are not granted.
    """
    from derive.catalog import load, load_without_tests
    from derive.errors import CatalogError
    from derive.protocol.entry_points import find_runtime

    limited = (load if with_tests else load_without_tests)(source, resources).within(lambda_limits)
    enabled = [derivation for derivation in limited.derivations.values() if not derivation.disabled]
    issues = [refusal for spec in enabled if (refusal := find_runtime(spec.connector).refusal(spec))]
    if issues:
        raise CatalogError(issues)
    return limited


def catalog_options(command: Command) -> Command:
    """Add the options `--source`, `--data` and `--metadata`."""
    return source_option(data_option(metadata_option(command)))


def data_folder(source: Path, data: Path | None) -> Path:
    """Return the absolute path of the data folder to use."""
    return (data or source.parent / ".flow").absolute()


def segments_option(command: Command) -> Command:
    """Add the option `--segments`, which chooses the location of the segments of a new data folder."""

    @wraps(command)
    def chosen(*args: Any, segments: str | None, source: Path, data: Path | None, **others: Any) -> None:
        if segments is not None:
            from derive.storage.location import ObjectFolder
            from derive.storage.metadata.location import choose_location

            folder = settle_metadata(data_folder(source, data), creates=True)
            choose_location(folder, ObjectFolder.of(segments))
        command(*args, source=source, data=data, **others)

    option = click.option(
        "--segments",
        envvar="FLOW_SEGMENTS",
        metavar="URL",
        help="Where a new data folder keeps its segments, such as s3://bucket/prefix.  [default: in the data folder]",
    )
    return option(chosen)  # type: ignore[return-value]


def optional_catalog(source: Path, data: Path | None) -> CatalogSpec | None:
    """Load the catalog; return None if it does not exist and `--data` is given, as for a folder that only SQL writes.

    Raises:
        CatalogError: the catalog is wrong.
    """
    from derive.catalog import load_without_tests

    return load_without_tests(source) if source.exists() or data is None else None


def created_folder(source: Path, data: Path | None) -> Path:
    """Return the data folder, for a command that creates a missing folder; note that a folder that is named is new."""
    folder = data_folder(source, data)
    if data is not None and not folder.exists():
        from derive.cli.console import note

        meant = _meant(folder, data_folder(source, None))
        note(f"{folder} becomes a new data folder{f'; did you mean {meant}?' if meant else ''}")
    return folder


def stored_folder(source: Path, data: Path | None) -> Path:
    """Return the data folder, for a command that creates no folder; without `--data`, the folder may be missing.

    Raises:
        UsageError: `--data` names no data folder.
        StorageError: the data folder cannot be read.
    """
    from derive.errors import StorageError, UsageError
    from derive.storage.metadata.opening import is_data_folder

    folder = data_folder(source, data)
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise StorageError(f"the data folder {folder} cannot be read: you have no permission")
    if data is None or is_data_folder(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return folder
    is_there = "is not a data folder: it has no metadata.db" if folder.exists() else "does not exist"
    meant = _meant(folder, data_folder(source, None))
    raise UsageError(f"{folder} {is_there}", hint=f"did you mean {meant}?" if meant else None)


def settle_metadata(folder: Path, *, creates: bool) -> Path:
    """Record the named database for the metadata of a data folder, and return the folder.

    Args:
        folder: path of the data folder.
        creates: whether the command creates a missing folder.

    Raises:
        UsageError: the metadata of the folder is elsewhere.
        StorageError: the database cannot be used.
    """
    place = named_metadata()
    if place is not None:
        from derive.storage.metadata.shared_opening import settle_place

        settle_place(folder, place, creates=creates)
    return folder


def named_metadata() -> Place | None:
    """Return the database that is named for the metadata of a data folder; None for none."""
    from derive.storage.metadata.place import VARIABLE, place_of

    url = os.environ.get(VARIABLE)
    return place_of(url) if url else None


def open_store(folder: Path, *, reading: bool = False, cache: Path | None = None) -> Store:
    """Open a data folder.

    Args:
        folder: path of the data folder.
        reading: whether the store is opened read-only.
        cache: as for `Store`.

    Raises:
        UsageError: the metadata of the folder is not in the named database.
        StorageError: another machine uses the folder, or the folder cannot be used.
    """
    from derive.storage.store import Store

    settle_metadata(folder, creates=not reading)
    return Store(folder, reading=reading, cache=cache)


def catalog_with_shadows(store: Store, catalog: CatalogSpec, names: Collection[str]) -> CatalogSpec:
    """Return the catalog that a run with the present shadows runs, if names belong to a shadow or to its derivation.

    This catalog has each shadow under its name, such as `shop/sums@2`, and the live derivation under its former
    definition.

    Args:
        store: the data folder.
        catalog: the catalog.
        names: names of derivations or collections from a user.

    Raises:
        UsageError: a name belongs to a shadow that does not exist, or the catalog was edited since the shadow began.
    """
    from derive.errors import UsageError
    from derive.protocol.collection import owner_of_version, task_of

    tasks = {task_of(name) or name for name in names}
    others = {name for name in tasks if owner_of_version(name)}
    shadows = store.shadows.members()
    present = [shadow.name for shadow in shadows]
    for name in sorted(others.difference(present)):
        raise UsageError(
            f"there is no shadow '{name}'",
            hint=f"the present shadows are: {', '.join(present)}"
            if present
            else f"a shadow exists from flowctl run --shadow until its swap; the version in force is"
            f" '{owner_of_version(name)}'",
        )
    if not others and tasks.isdisjoint(shadow.task for shadow in shadows):
        return catalog
    from derive.engine.shadow import running_catalog

    try:
        return running_catalog(store, shadows, catalog)
    except UsageError:
        if others:
            raise
        return catalog  # it was edited since the shadow began


def _meant(folder: Path, default: Path) -> Path | None:
    """Return the data folder that the user of a wrong path probably meant; None without a guess."""
    from derive.errors import suggest
    from derive.storage.metadata.opening import is_data_folder

    if is_data_folder(folder / default.name):
        return folder / default.name
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    similar = suggest(folder.name, [path.name for path in beside if is_data_folder(path)])
    if similar:
        return folder.parent / similar
    return default if is_data_folder(default) else None


def clock_of(option: str, text: str | None) -> int | None:
    """Parse the time of an option as microseconds; return None if the option is not given.

    Raises:
        UsageError: the text is not a time.
    """
    from derive.document.clock import TIME_FORMS, parse_time
    from derive.errors import UsageError

    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError as exc:
        raise UsageError(f"{option} takes {TIME_FORMS}, not {text}") from exc
