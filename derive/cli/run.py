"""`flowctl run`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from derive.cli.monitoring import monitoring_options, traces_option
from derive.cli.options import (
    catalog_options,
    created_folder,
    limit_options,
    limited_catalog,
    local_option,
    open_store,
    quiet_option,
    segments_option,
)
from derive.cli.prepare import prepare_after
from derive.cli.ui import beside_option, pages_beside
from derive.interrupts import handle_interrupts
from derive.plural import counted

if TYPE_CHECKING:
    from derive.catalog.loading import Resources
    from derive.cli.applying import Applying
    from derive.cli.console import Progress
    from derive.cli.monitoring import Monitoring, ObservedRun
    from derive.cli.shadowing import BindingShadowing, Shadowing
    from derive.engine.auto_split import AutoSplit
    from derive.engine.inputs import PendingDocuments
    from derive.engine.run import Run
    from derive.engine.scheduler import Scheduler
    from derive.engine.task_reconciler import TaskReconciler
    from derive.engine.transactor import Committed
    from derive.errors import FlowError
    from derive.protocol.specs import CatalogSpec, LambdaLimits
    from derive.storage.capability.table import Capability
    from derive.storage.store import Store

Value = TypeVar("Value")

_HEAL_SECONDS = 10.0


@click.command()
@catalog_options
@segments_option
@click.option("--until-idle", is_flag=True, help="Stop once everything ingested so far is processed.")
@click.option("--watch", is_flag=True, help="Apply edits of the catalog while the run continues.")
@click.option(
    "--shadow",
    is_flag=True,
    help="Derive edited derivations beside the live ones, which they then replace; also raised bindings.",
)
@click.option("--hold", is_flag=True, help="With --shadow, wait for `flowctl swap` before the replacement.")
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Run only this task (repeatable).")
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="NAME",
    help="Accept the pending edits of this task (repeatable).",
)
@click.option("--shards", type=click.IntRange(1, 1024), help="Number of shards of tasks that run for the first time.")
@click.option(
    "--auto-split",
    type=click.IntRange(2, 1024),
    metavar="N",
    help="Double the shards of derivations that stay minutes behind, up to N shards.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="Maximum number of tasks that run at once.",
)
@click.option("--master", metavar="URL", help="Spark master.  [default: this machine's cores]")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark (repeatable).")
@local_option
@monitoring_options("run")
@traces_option
@beside_option
@click.option(
    "--state-cache",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="FLOW_STATE_CACHE",
    metavar="DIR",
    help="Keep the state of shards as objects, with a cache in this folder of each machine.",
)
@click.option("--limits", metavar="JSON", default="{}", hidden=True, help="Limits of transactions: fields of `Limits`.")
@quiet_option
@limit_options
def command(
    source: Path,
    data: Path | None,
    tasks: tuple[str, ...],
    shards: int | None,
    threads: int,
    master: str | None,
    conf: tuple[str, ...],
    limits: str,
    *,
    accepted: tuple[str, ...],
    local_documents: int | None,
    pages: str | None,
    state_cache: Path | None,
    until_idle: bool,
    watch: bool,
    shadow: bool,
    hold: bool,
    auto_split: int | None,
    traces: bool,
    monitoring: Monitoring,
    lambda_limits: LambdaLimits,
) -> None:
    """Run the catalog's derivations and materializations, until stopped with Ctrl-C.

    Work begins in this process at once. If a backlog is large enough, Spark starts in the background and takes over.

    A task that fails does not stop the others: `flowctl status` and `flowctl logs` show the error, and the task resumes
    when the cause is gone.

    With --watch, edits of the catalog's files, `flowctl reset` and `flowctl split` are applied while the run continues.
    A changed task restarts after its transaction; the other tasks continue. While the catalog has errors, all tasks
    continue unchanged.

    If an edit would let a task count documents twice, only this task waits. The run prints the effect of the edit and
    the alternatives. On a terminal, the run asks whether to apply the edit. --accept applies it without a question.
    `flowctl plan` shows the effects of all edits before a run.

    With --shadow, edited derivations and all derivations that read them run twice: as they were, and beside them from
    history as the catalog defines them now. When the shadows have caught up, they replace the others at one time. In
    the same way, a binding with a raised `backfill` fills a second table, whose rows then replace those of its table.
    `flowctl diff` shows what will differ, and `flowctl shadow drop` gives the shadows up.

    With --auto-split, a derivation that would need more than two minutes for its due documents, for a minute or longer,
    gets twice as many shards, as by `flowctl split`. The run reports each split. A split cannot be undone.

    With --state-cache, the data folder has the state of each shard as objects: a snapshot, and the pages that each
    transaction has changed. A worker keeps a copy in this folder of its own disk, and fetches what the copy lacks.

    \b
    Examples:
      flowctl run --until-idle
      flowctl run --shadow --until-idle
      flowctl run --shadow --hold
      flowctl run --accept acmeBank/balances
      flowctl run --watch --auto-split 16
      flowctl run --watch --ui 127.0.0.1:8080
      flowctl run --task acmeBank/balances --shards 4 --master spark://host:7077
    """
    from derive.catalog.loading import Resources
    from derive.cli.applying import applying_edits, ask_to_fence
    from derive.cli.console import Progress, note
    from derive.cli.shadowing import choose_catalog, shadowing_of
    from derive.engine.executor import open_executor
    from derive.engine.task_reconciler import open_changing_run
    from derive.time.extent import Limits

    handle_interrupts()
    _refuse(auto_split, shadow=shadow, hold=hold, watch=watch, until_idle=until_idle, has_tasks=bool(tasks))
    load = partial(_load, source, lambda_limits, tasks or None)
    catalog = load(resources := Resources())
    settings, folder = _settings(conf, master), created_folder(source, data)
    with Progress() as progress, ExitStack() as stack:
        reporter = _Reporter(progress, goes_on=not until_idle)
        observed = stack.enter_context(monitoring.observed(reporter, has_traces=traces))
        attempt = partial(_attempt, observed, is_patient=not until_idle)
        store = stack.enter_context(_opened(attempt, source, folder, pages, state_cache))
        spark, executor = open_executor(master, folder / "logs" / "spark.log", settings, local_documents, note)
        stack.callback(prepare_after, spark)
        stack.enter_context(closing(executor))
        others = ask_to_fence(store.task_capabilities.runs(tasks or _names(store, catalog)))
        running, group = attempt(partial(choose_catalog, store, catalog, tasks, accepted, shadow=shadow, hold=hold))
        accepted = (*accepted, *attempt(partial(reporter.ask, store, running, tasks or None, accepted)))
        opening = partial(open_changing_run, running, store, executor, tasks=tasks or None, shards=shards)
        opening = partial(opening, cores=os.cpu_count() or 1, limits=Limits(**json.loads(limits)))
        run, reconciler = attempt(partial(opening, observer=observed.observer, accepted=accepted))
        stack.enter_context(closing(run))
        stack.enter_context(observed.begun(run, store, spark))
        _report_begin(reporter, run, others, () if group else accepted)  # a swap uses them later
        shadowing = shadowing_of(store, run, reconciler, group, catalog, accepted)
        watching = applying_edits(run, reconciler, load, resources, store.changes.wake) if watch else nullcontext()
        splitting = _splitting(run, store, reconciler, auto_split)
        advance = partial(_advance, stack.enter_context(watching), shadowing, splitting)
        has_failed = _carry_on(run, threads, advance, shadowing, observed, until_idle=until_idle)
        _report_empty(store, catalog, run, is_over=until_idle)
    if reporter.failures or has_failed:
        raise click.exceptions.Exit(1)


@contextmanager
def _opened(
    attempt: Callable[[Callable[[], Store]], Store], source: Path, folder: Path, pages: str | None, cache: Path | None
) -> Iterator[Store]:
    """Open the data folder, and serve its pages beside the run if `pages` is an address."""
    from derive.errors import UsageError
    from derive.storage.metadata.joining import is_joined
    from derive.storage.metadata.location import states_of

    cache = cache or states_of(folder)
    opening = partial(open_store, folder, cache=cache)
    with closing(attempt(opening)) as store, pages_beside(pages, source, folder):
        if cache is None and is_joined(folder):
            raise UsageError(
                f"{folder} has joined the data folder of another machine, so it cannot keep the state of shards",
                hint="let the states travel: --state-cache DIR",
            )
        yield store


def _names(store: Store, catalog: CatalogSpec) -> list[str]:
    """Return the names of all tasks, and of the shadows that run as tasks now."""
    return [*catalog.tasks, *(shadow.name for shadow in store.shadows.members())]


def _report_begin(reporter: _Reporter, run: Run, others: Mapping[str, Capability], accepted: Sequence[str]) -> None:
    """Report the tasks that a run begins with, and the runs that it has fenced."""
    from derive.cli.applying import report_accepted, report_new, report_superseded

    reporter.watch(run)
    report_superseded(others)
    report_new(run.tasks.values())
    report_accepted(run.tasks.values(), accepted)


def _load(
    source: Path, lambda_limits: LambdaLimits, tasks: tuple[str, ...] | None, resources: Resources
) -> CatalogSpec:
    """Load a catalog, check the code of the selected tasks, and print each warning about it once."""
    from derive.catalog.build import require_sound
    from derive.cli.console import print_warning_once

    catalog = limited_catalog(source, lambda_limits, resources, with_tests=False)
    for issue in require_sound(catalog, tasks):
        print_warning_once(issue)
    return catalog


def _carry_on(
    run: Run,
    threads: int,
    advance: Callable[[Scheduler], bool],
    shadowing: Shadowing | BindingShadowing | None,
    observed: ObservedRun,
    *,
    until_idle: bool,
) -> bool:
    """Run tasks until no work is left or Ctrl-C is pressed; return whether a shadow has failed."""
    from derive.cli.console import note
    from derive.engine.scheduler import Scheduler
    from derive.shard.worker import spare_documents

    spare_documents()
    try:
        with Scheduler(run, threads) as scheduler:
            if until_idle:
                waiting = run.until_idle(scheduler.step)
                if shadowing is not None and shadowing.finish(scheduler):
                    waiting = run.until_idle(scheduler.step)
                _report_waiting(waiting)
            else:
                _forever(run, scheduler, advance, shadowing, observed)
    except KeyboardInterrupt:
        note("stopped; the next run continues after the last commit")
        raise click.exceptions.Exit(0 if not until_idle else 130) from None
    return shadowing is not None and shadowing.has_failed


def _settings(conf: tuple[str, ...], master: str | None) -> dict[str, str]:
    from derive.errors import UsageError
    from derive.spark.session import require_spark_context

    for setting in conf:
        if "=" not in setting:
            raise UsageError(f"--conf takes a setting such as spark.executor.memory=2g, not {setting}")
    settings = dict(setting.split("=", 1) for setting in conf)
    require_spark_context(master, settings)
    return settings


def _forever(
    run: Run,
    scheduler: Scheduler,
    advance: Callable[[Scheduler], bool],
    shadowing: Shadowing | BindingShadowing | None,
    observed: ObservedRun,
) -> None:
    from derive.cli.console import note
    from derive.cli.foreground import stopping

    def failed(error: FlowError) -> None:
        if shadowing is not None:
            shadowing.require_shadow()
        if not error.heals:
            raise error
        _pause(observed, error)

    tasks = len(run.tasks)
    note(f"running {counted(tasks, 'task')}; {stopping()}")
    scheduler.serve(advance=partial(advance, scheduler), failed=failed)


def _splitting(run: Run, store: Store, reconciler: TaskReconciler, most: int | None) -> AutoSplit | None:
    from derive.cli.console import note
    from derive.engine.auto_split import AutoSplit

    return None if most is None else AutoSplit(run, store, reconciler, most, note)


def _advance(
    applying: Applying | None,
    shadowing: Shadowing | BindingShadowing | None,
    splitting: AutoSplit | None,
    scheduler: Scheduler,
) -> bool:
    """Apply edits, bring shadows into force and split tasks; return whether to call this again soon."""
    apply: Callable[[], bool] = (lambda: False) if applying is None else partial(applying.advance, scheduler)
    is_applying = apply() if splitting is None else splitting.advance(scheduler, apply)
    return (shadowing is not None and shadowing.advance(scheduler)) or is_applying


def _refuse(auto_split: int | None, *, shadow: bool, until_idle: bool, **options: bool) -> None:
    """Raise an error for options that exclude each other."""
    from derive.cli.shadowing import refuse_options
    from derive.errors import UsageError

    refuse_options(shadow=shadow, until_idle=until_idle, **options)
    other = "--until-idle" if until_idle else "--shadow" if shadow else None
    if auto_split and other:  # a run that ends would be over before a split pays; a swap keeps the number of shards
        raise UsageError(f"--auto-split and {other} exclude each other", hint="split with: flowctl split --task NAME")


def _attempt(observed: ObservedRun, action: Callable[[], Value], *, is_patient: bool) -> Value:
    """Return the result of an action; repeat the action while it raises a transient error, if `is_patient`.

    Args:
        observed: the run, as monitoring systems see it.
        action: an action that may fail with a transient error, such as a full disk.
        is_patient: whether to repeat the action.
    """
    from derive.errors import FlowError

    while True:
        try:
            return action()
        except FlowError as error:
            if not (is_patient and error.heals):
                raise
            _pause(observed, error)


def _pause(observed: ObservedRun, error: FlowError) -> None:
    """Print a transient error, and wait before the next try."""
    from derive.cli.console import print_repeated

    print_repeated(error)
    with observed.troubled(error.message):
        time.sleep(_HEAL_SECONDS)


def _report_empty(store: Store, catalog: CatalogSpec, run: Run, *, is_over: bool) -> None:
    """Print a note if a run is over whose tasks read ingested collections, and none of these has documents."""
    from derive.cli.console import note
    from derive.protocol.collection import is_of_sql

    names = dict.fromkeys(item.source for task in run.tasks.values() for item in task.spec.inputs)
    ingested = [name for name in names if name not in catalog.derivations]
    if not is_over or any(
        is_of_sql(name) or ((known := store.collection(name)) and known.documents) for name in ingested
    ):
        return
    if ingested:
        note(f"no source has documents; load some: flowctl ingest --collection {ingested[0]} FILE")


def _report_waiting(waiting: list[PendingDocuments]) -> None:
    from derive.cli.console import note
    from derive.document.clock import format_duration, format_rfc3339

    for wait in waiting:
        reason = f"its read delay of {format_duration(wait.delay)}, the first until {format_rfc3339(wait.due)}"
        if wait.behind is not None:
            reason = f"'{wait.behind}', which does not advance"
        elif not wait.delay:
            reason = f"its time, which is in the future: from {format_rfc3339(wait.due)}"
        wait_for = f"{'waits' if wait.documents == 1 else 'wait'} for {reason}"
        documents = f"{counted(wait.documents, 'document')} for '{wait.transform}'"
        note(f"{wait.task}: {documents} {wait_for}", task=wait.task)


class _Reporter:
    """Reports on the terminal what a run does."""

    def __init__(self, progress: Progress, *, goes_on: bool) -> None:
        self._goes_on = goes_on
        self._progress = progress
        self._run: Run | None = None
        self._before: dict[str, int] = {}  # by task, documents of earlier transactions of the same backlog
        self.failures = 0
        self._shown: set[str] = set()  # messages of waiting edits that were printed and refused

    def ask(
        self, store: Store, catalog: CatalogSpec, tasks: Sequence[str] | None, accepted: Sequence[str]
    ) -> list[str]:
        """Ask about waiting edits, and return the tasks whose edits were accepted; see `ask_acceptance`."""
        from derive.cli.applying import ask_acceptance

        return ask_acceptance(store, catalog, tasks, accepted, self._shown)

    def watch(self, run: Run) -> None:
        """Show the progress of transactions within the backlogs of the tasks of a run."""
        self._run = run

    def working(self, task: str, documents: int) -> None:
        """Show the progress of a transaction of `task`, and of its backlog."""
        self._progress.show(task, documents, self._backlog(task), before=self._before.get(task, 0))

    def committed(self, task: str, done: Committed) -> None:
        """Report a committed transaction."""
        if done.documents_in:
            self._progress.done(task, done.documents_in)
        left = (self._backlog(task) or 0) - done.documents_in
        self._before[task] = self._before.get(task, 0) + done.documents_in if left > 0 else 0

    def _backlog(self, task: str) -> int | None:
        """Return the number of documents that waited for a task; None if it is unknown."""
        opened = self._run.tasks.get(task) if self._run else None
        return opened.backlog or None if opened else None

    def failed(self, task: str, error: FlowError) -> None:
        """Report a task that has stopped."""
        from derive.cli.console import note, print_error, print_repeated
        from derive.cli.preview import with_preview
        from derive.errors import UnacceptedError

        self.failures += 1
        self._progress.stop(task)
        if isinstance(error, UnacceptedError):
            note(f"{task} waits until its edit is accepted; the other tasks continue", level="warn", task=task)
            if error.message not in self._shown:
                print_error(error)
            self._shown.discard(error.message)
            return
        then = ", and will be retried" if error.heals and self._goes_on else ""
        print_repeated(with_preview(task, error), f"{task} stopped; its transaction was rolled back{then}", task=task)
