"""`flowctl reset` and `flowctl split`: changes of a task's state."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import click

from derive.cli.options import catalog_options, open_store, quiet_option, stored_folder
from derive.plural import counted


@click.command()
@catalog_options
@click.option("--task", "tasks", multiple=True, required=True, metavar="NAME", help="The task (repeatable).")
@click.option("--cascade", is_flag=True, help="Also reset the tasks that read the collection.")
@quiet_option
def reset_command(source: Path, data: Path | None, tasks: tuple[str, ...], *, cascade: bool) -> None:
    """Start a task over: remove its derived documents, its state and its progress.

    The next run, or a `flowctl run --watch` that is running, derives everything again from the first document of each
    source. A running `flowctl run` without --watch ends. A materialization deletes its stored rows one by one, and
    stores all rows again; delta updates are sent again.

    \b
    Examples:
      flowctl reset --task acmeBank/balances
      flowctl reset --task acmeBank/transfer-outcomes --cascade
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import Progress, note
    from derive.engine.reset import reset
    from derive.storage.metadata.process import show_process

    catalog = load_without_tests(source)
    with Progress("file") as progress, closing(open_store(stored_folder(source, data))) as store:

        def show(task: str, done: int, total: int) -> None:
            progress.show(f"reset {task}", done, total)

        runs = store.task_capabilities.runs(catalog.tasks)
        names = reset(catalog, store, tasks, cascade=cascade, progress=show)
        progress.pause()
        for name in names:
            note(f"{name} starts over with the next run, or in a running 'flowctl run --watch'")
        for process in sorted({show_process(runs[name].process) for name in names if name in runs}):
            note(f"the flowctl run in process {process} ends, unless it has --watch: start it again with 'flowctl run'")


@click.command()
@catalog_options
@click.option("--task", "tasks", multiple=True, required=True, metavar="NAME", help="The task (repeatable).")
@click.option(
    "--shards",
    type=click.IntRange(1, 1024),
    help="Double until the task has N shards.  [default: once]",
)
@quiet_option
def split_command(source: Path, data: Path | None, tasks: tuple[str, ...], shards: int | None) -> None:
    """Double the shards of a task. This copies the state of the task.

    The documents that the task derives or materializes stay the same, byte for byte. A `flowctl run --watch` that is
    running continues with the new shards; a run without `--watch` must be restarted.

    If a split was killed, run it again with --shards: a task that has that many shards is not changed.

    \b
    Examples:
      flowctl split --task acmeBank/first-send
      flowctl split --task acmeBank/first-send --shards 8
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import Progress, note
    from derive.engine.reset import split, split_up_to
    from derive.protocol.collection import owner_of_version
    from derive.protocol.derive import DividesState
    from derive.protocol.entry_points import find_runtime

    catalog = load_without_tests(source)
    names = [catalog.find_task(name).name for name in tasks]
    with Progress("shard") as progress, closing(open_store(stored_folder(source, data))) as store:
        for name in names:
            spec = catalog.derivations.get(name)
            runtime = find_runtime(spec.connector) if spec else None
            connector = runtime if isinstance(runtime, DividesState) else None
            splitting = split if shards is None else partial(split_up_to, shards=shards)
            showing = partial(progress.show, f"split {name}")
            count = splitting(store, name, is_materialized=spec is None, connector=connector, progress=showing)
            progress.stop(f"split {name}")
            note(f"{name} has {counted(count, 'shard')}")
            for shadow in store.shadows.members():
                state = store.task(shadow.name) if owner_of_version(shadow.name) == name else None
                if state is not None and state.shards < count:
                    kept = f"the swap keeps the number of shards of {shadow.name} ({state.shards})"
                    note(f"{kept}: split the task again after it")
