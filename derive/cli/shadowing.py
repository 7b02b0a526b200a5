"""Shadows in `flowctl run --shadow`: their beginning, and reports of the swap."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from derive.engine.swapping import Swapping

if TYPE_CHECKING:
    from derive.engine.run import Run
    from derive.engine.scheduler import Scheduler
    from derive.engine.shadow import Group
    from derive.engine.task_reconciler import TaskReconciler
    from derive.protocol.specs import CatalogSpec
    from derive.storage.store import Store


def refuse_options(*, shadow: bool, hold: bool, watch: bool, until_idle: bool, has_tasks: bool) -> None:
    """Refuse options of `flowctl run` that make no sense together.

    Raises:
        UsageError: the options contradict each other.
    """
    from derive.errors import UsageError

    if watch and until_idle:
        raise UsageError("--watch runs until it is stopped, but --until-idle ends", hint="use one of the two options")
    if hold and not shadow:
        raise UsageError("--hold needs --shadow")
    if shadow and watch:
        raise UsageError(
            "--shadow brings one edit of the catalog into force, but --watch applies every edit at once",
            hint="use one of the two options",
        )
    if shadow and has_tasks:
        raise UsageError(
            "--shadow runs all tasks, because all derivations that read an edited one are replaced with it",
            hint="leave out --task",
        )


def choose_catalog(
    store: Store,
    catalog: CatalogSpec,
    tasks: Collection[str],
    accepted: Collection[str],
    *,
    shadow: bool,
    hold: bool,
) -> tuple[CatalogSpec, Group | None]:
    """Return the catalog to run, and the group whose shadows are derived; None without a shadow.

    Args:
        store: the data folder.
        catalog: the catalog.
        tasks: names of the tasks to run; empty for all.
        accepted: materializations whose bindings may start over although their connector cannot replace rows at once.
        shadow: whether to derive shadows of edited derivations.
        hold: whether the swap waits for `flowctl swap`.

    Raises:
        UsageError: the data folder has shadows of other definitions; a run without shadows has one of their tasks; a
            binding that reads the group cannot replace its rows; or a run with shadows accepts an unknown task.
    """
    from derive.engine.shadow import require_unshadowed

    if shadow:
        return _begin(store, catalog, accepted, is_held=hold)
    require_unshadowed(store.shadows, tasks or catalog.tasks)
    return catalog, None


def _begin(
    store: Store, catalog: CatalogSpec, accepted: Collection[str], *, is_held: bool
) -> tuple[CatalogSpec, Group | None]:
    """Begin or continue the shadows of a catalog's edited derivations, or of its bindings; see `choose_catalog`."""
    from derive.cli.console import note
    from derive.engine.shadow import find_group, find_raised, require_raised
    from derive.errors import UsageError
    from derive.storage.shadows import other_edit

    for name in accepted:
        catalog.find_task(name)
    group = find_group(store, catalog)
    if group is None and store.shadows.members():
        raise other_edit()
    raised = {name: set(keys.values()) for name, keys in find_raised(store, catalog).items()}
    if group is None:
        if raised or store.shadows.bindings():
            return _begin_bindings(store, catalog, is_held=is_held), None
        require_raised(store, catalog)
        _require_swapped(store, catalog)
        note(
            "the catalog is in force, and there is no shadow: the run continues without one; to derive all documents"
            " again after a run has applied an edit: flowctl reset --task NAME --cascade"
        )
        return catalog, None
    if raised or store.shadows.bindings():
        present = [shadow.task for shadow in store.shadows.bindings()]
        raise UsageError(
            f"a run fills shadows of derivations or of bindings, but both {', '.join(group.members)} and the bindings"
            f" of {', '.join(present or raised)} are edited",
            hint="first swap or drop the shadow of the bindings; then edit the derivations"
            if present
            else "undo the edit of the bindings; repeat it after the derivations are swapped",
        )
    return _begin_group(store, catalog, group, accepted, is_held=is_held)


def _require_swapped(store: Store, catalog: CatalogSpec) -> None:
    """Raise an error if there is nothing to shadow, unless a supervisor may repeat the command after a swap.

    Raises:
        UsageError: no shadow has ever replaced a derivation or the rows of a binding.
    """
    from derive.errors import UsageError

    inputs = (item for spec in catalog.materializations.values() for item in spec.inputs)
    if any(item.backfill for item in inputs) or any(map(store.history.versions, catalog.derivations)):
        return
    raise UsageError(
        "no derivation was edited since it ran, and no 'backfill' of a binding was raised, so there is no shadow",
        hint="run without --shadow: flowctl run; if a run has already applied the edit, derive all documents again:"
        " flowctl reset --task NAME --cascade",
    )


def _begin_bindings(store: Store, catalog: CatalogSpec, *, is_held: bool) -> CatalogSpec:
    """Begin or continue the shadows of a catalog's bindings; return the catalog to run."""
    from derive.cli.console import note
    from derive.engine.shadow import begin_binding_shadows

    running = begin_binding_shadows(store, catalog, is_held=is_held)
    for shadow in store.shadows.bindings():
        names = ", ".join(f"'{key}'" for key in shadow.keys.values())
        note(f"{shadow.task}: a second table is filled beside the table of {names}", task=shadow.task)
    return running


def _begin_group(
    store: Store, catalog: CatalogSpec, group: Group, accepted: Collection[str], *, is_held: bool
) -> tuple[CatalogSpec, Group]:
    """Begin or continue the shadows of a group of derivations; return the catalog to run, and the group."""
    from derive.cli.console import note
    from derive.engine.shadow import begin_shadow
    from derive.engine.swapping import find_restarts, require_replaceable

    require_replaceable(store, catalog, find_restarts(store, catalog, group.members), accepted)
    store.create(*group.live_catalog().collections.values())
    running = begin_shadow(store, group, is_held=is_held)
    shadows = store.shadows.members()
    names = ", ".join(shadow.name for shadow in shadows)
    note(f"{names} {'is' if len(shadows) == 1 else 'are'} derived beside the live version", shadows=list(group.members))
    return running, group


def shadowing_of(
    store: Store,
    run: Run,
    reconciler: TaskReconciler,
    group: Group | None,
    catalog: CatalogSpec,
    accepted: Collection[str],
) -> Shadowing | BindingShadowing | None:
    """Return the swaps of a run; None without shadows.

    Args:
        store: the data folder.
        run: the run.
        reconciler: applies the catalog after a swap.
        group: the group of derivations; None without one.
        catalog: the catalog without shadows.
        accepted: materializations whose bindings may start over although their connector cannot replace rows at once.
    """
    if group:
        return Shadowing(store, run, reconciler, group, accepted)
    if any(spec.shadows for spec in run.task_graph.catalog.materializations.values()):
        return BindingShadowing(store, run, reconciler, catalog)
    return None


class Shadowing:
    """The swap of a run with shadows, with reports on the terminal.

    Args:
        store: the data folder.
        run: the run.
        reconciler: applies the catalog after the swap.
        group: the group of derivations.
        accepted: materializations whose bindings may start over although their connector cannot replace rows at once.
    """

    def __init__(
        self, store: Store, run: Run, reconciler: TaskReconciler, group: Group, accepted: Collection[str]
    ) -> None:
        self._store, self._group = store, group
        self._swapping = Swapping(store, run, reconciler, group, accepted)
        self._is_reported = False
        self._shadows = store.shadows.members()
        run.background = frozenset(shadow.name for shadow in self._shadows)

    def advance(self, scheduler: Scheduler) -> bool:
        """Do the next step of the swap; return whether a further step is possible soon.

        Raises:
            UsageError: another process has dropped the shadow.
        """
        is_meeting = self._swapping.advance(scheduler)
        self._report()
        return is_meeting

    def finish(self, scheduler: Scheduler) -> bool:
        """Bring the shadows of an idle run to the swap; return whether the swap is done.

        Raises:
            UsageError: another process has dropped the shadow.
        """
        from derive.cli.console import note
        from derive.document.clock import format_rfc3339

        is_done = self._swapping.finish(scheduler)
        self._report()
        if is_done or self._swapping.error:
            return is_done
        at = format_rfc3339(self._swapping.at or 0)
        meeting = self._store.shadows.meeting()
        if self._swapping.is_met:
            note(f"the shadow is complete up to {at}; compare it: flowctl diff; bring it into force: flowctl swap")
        elif meeting is not None:
            behind = ", ".join(meeting.behind) or "a member that has failed"
            note(f"the swap waits for {behind}; continue with: flowctl run --shadow", level="warn")
        return False

    @property
    def has_failed(self) -> bool:
        """Return whether the swap has failed."""
        return self._swapping.error is not None

    def require_shadow(self) -> None:
        """Raise an error if another process has dropped the shadow, or has swapped it.

        Raises:
            UsageError: the data folder has no shadow.
        """
        from derive.errors import UsageError

        if self._swapping.is_over and self._swapping.swapped is None:
            versions = {name: self._store.history.versions(name) for name in self._group.members}
            if any(version.number == one.number for one in self._shadows for version in versions[one.task]):
                raise UsageError(
                    "another process has brought the new version into force, so this run ends",
                    hint="continue with the new version: flowctl run",
                )
            raise UsageError(
                "another process has dropped the shadow, so this run ends",
                hint="see the effect of the edit without a shadow: flowctl plan",
            )

    def _report(self) -> None:
        from derive.cli.console import note, print_error
        from derive.document.clock import format_rfc3339

        if self._is_reported:
            return
        if self._swapping.error is not None:
            self._is_reported = True
            print_error(self._swapping.error)
        elif self._swapping.swapped is not None:
            self._is_reported = True
            at = format_rfc3339(self._swapping.swapped)
            note(f"{', '.join(self._group.members)}: the new version is in force from {at} on", at=at)
        else:
            self.require_shadow()


class BindingShadowing:
    """The swaps of a run with shadows of bindings, with reports on the terminal.

    Args:
        store: the data folder.
        run: the run.
        reconciler: applies the catalog after a swap.
        catalog: the catalog without shadows.
    """

    def __init__(self, store: Store, run: Run, reconciler: TaskReconciler, catalog: CatalogSpec) -> None:
        from derive.engine.swapping import BindingSwapping

        self._store = store
        self._swapping = BindingSwapping(store, run, reconciler, catalog)
        self._reported: set[str] = set()

    def advance(self, scheduler: Scheduler) -> bool:
        """Swap the shadows that are ready; return whether a further step is possible soon.

        Raises:
            UsageError: another process has dropped the shadow.
        """
        is_soon = self._swapping.advance(scheduler)
        self._report()
        return is_soon

    def finish(self, scheduler: Scheduler) -> bool:
        """Bring the shadows of an idle run to the swap; return whether the swaps are done.

        Raises:
            UsageError: another process has dropped the shadow.
        """
        from derive.cli.console import note

        is_done = self._swapping.finish(scheduler)
        self._report()
        for name, shadow in self._swapping.present().items():
            if shadow.error is not None:
                continue
            if self._store.shadows.behind(shadow):
                what = f"the shadow of '{name}' is behind the live rows"
                note(f"{what}; continue it: flowctl run --shadow", level="warn")
            elif shadow.is_held:
                note(f"the shadow of '{name}' is complete; compare it: flowctl diff; bring it into force: flowctl swap")
        return is_done

    @property
    def has_failed(self) -> bool:
        """Return whether an error has stopped a shadow."""
        return any(shadow.error for shadow in self._swapping.present().values())

    def require_shadow(self) -> None:
        """Raise an error if another process has dropped a shadow, or has swapped it.

        Raises:
            UsageError: the data folder has no such shadow.
        """
        from derive.errors import UsageError

        ended = sorted(self._swapping.left.keys() - self._swapping.present().keys())
        if ended:
            raise UsageError(
                f"another process has dropped the shadow of {', '.join(ended)}, or has swapped it, so this run ends",
                hint="see how far the tasks are: flowctl status",
            )

    def _report(self) -> None:
        from derive.cli.console import note, print_repeated

        for name in self._swapping.swapped:
            if name not in self._reported:
                self._reported.add(name)
                note(f"{name}: the rows of the second table replace the former rows", task=name)
        for name, shadow in self._swapping.present().items():
            if shadow.error is not None:
                print_repeated(shadow.error, f"the shadow of '{name}' stopped, and its live rows continue", task=name)
        self.require_shadow()
