"""Cycle transactions: the derivations of a cycle advance and commit together.

Without a cycle transaction, the tasks take turns: each step of a task is a transaction with a commit, and its length
depends on the output of the other tasks. In a cycle transaction, one worker takes the steps of all tasks, in rounds.

If a round fails, a second cycle transaction repeats the rounds before the failure. Then each task takes its own step.
So only the failing task stops, and the other tasks advance as far as possible.

Each task takes its own step also if a cycle transaction moves no position. This occurs if limits cut the look of one
task at a source: the other tasks may not read the source beyond the cut before that task has moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from derive.engine.derivation import Derivation
from derive.engine.executor import Executor
from derive.engine.inputs import Inputs
from derive.engine.task import Task
from derive.engine.transactor import Committed, Phases, Prepared, Transaction
from derive.errors import EngineLostError, FencedError, FlowError
from derive.shard.plan import Cycle, Plan
from derive.shard.progress import Message, Progress, work_of
from derive.storage.metadata.descriptions import TaskMove
from derive.storage.roles import Runnable
from derive.storage.task_log import TaskLog
from derive.time.cycle import Step
from derive.time.extent import Limits, Load, size_of

_MOST_PATIENCE = 64


@dataclass(frozen=True, slots=True)
class Member:
    """A task of a cycle before a cycle transaction.

    Attributes:
        task: the task.
        derivation: its transactor.
        inputs: its inputs.
        step: the step that the task would take without a cycle transaction; None if missing.
    """

    task: Task
    derivation: Derivation
    inputs: Inputs
    step: Step | None


class CycleTransaction:
    """Cycle transactions of one cycle.

    Args:
        store: the data folder.
        executor: executes the transactions.
        derivations: derivations of the cycle, in the order of their turns.
        limits: limits for cutting the work.
    """

    def __init__(self, store: Runnable, executor: Executor, derivations: Sequence[Derivation], limits: Limits) -> None:
        self._store = store
        self._executor = executor
        self._derivations = derivations
        self._limits = limits
        self._log = TaskLog(store.root, derivations[0].spec.name)
        self._apart = 0  # number of single steps before the next cycle transaction
        self._patience = 1  # number of single steps after the next failure

    def advance(
        self,
        tasks: Mapping[str, Task],
        looks: Mapping[str, Inputs],
        steps: Mapping[str, Step | None],
        now: int,
        working: Callable[[str, int], None],
    ) -> dict[str, Committed]:
        """Run one cycle transaction, as far as frontiers and limits allow.

        Args:
            tasks: tasks of the cycle, by name.
            looks: inputs of each task.
            steps: the step that each task would take without a cycle transaction.
            now: timestamp up to which the sources are sealed.
            working: called at the start with the name of each task and 0, and then with the name of the first task and
                its number of processed documents; not called without a transaction.

        Returns:
            Committed work by task; empty if each task must take its own step.

        Raises:
            FencedError: another run has fenced this run.
            EngineLostError: the executor is lost.
        """
        if self._apart:
            self._apart -= 1
            return {}
        members = [
            Member(tasks[name], derivation, looks[name], steps[name])
            for derivation in self._derivations
            for name in [derivation.spec.name]
        ]
        if not self._is_worthwhile(members):
            return {}
        for member in members:
            working(member.task.spec.name, 0)
        return self._try(members, now, partial(working, members[0].task.spec.name))

    def _is_worthwhile(self, members: Sequence[Member]) -> bool:
        """Return whether there are documents to process, and so few that one shard can process all."""
        steps = [(member, member.step) for member in members if member.step and member.step.has_documents]
        return bool(steps) and all(
            member.task.shards == 1
            or self._limits.is_small(size_of(member.task.reads(member.inputs, step.behind, step.bound)))
            for member, step in steps
        )

    def _try(self, members: Sequence[Member], now: int, progress: Progress) -> dict[str, Committed]:
        """Run as many rounds of turns as succeed, and commit them."""
        rounds: int | None = None
        while True:
            begun = time.monotonic()
            limits = self._prepare(members, now)
            transactions = [
                member.task.begin(member.inputs, member.task.spec.inputs, now, limits) for member in members
            ]
            plan = self._plan(members, transactions, rounds)
            planned = time.monotonic()
            messages = self._execute(plan, progress)
            errors = [message for message in messages if message.error]
            if not errors and _has_moved(members, transactions, messages):
                if rounds is None:
                    self._patience = 1
                return self._commit(members, transactions, messages, begun, planned)
            self._apart, self._patience = self._patience, min(2 * self._patience, _MOST_PATIENCE)
            if not errors:
                return {}
            went_well = min(message.rounds for message in errors)
            for message in errors:
                self._log.write(
                    "warn",
                    f"a transaction of the cycle failed, and is retried with fewer rounds:"
                    f" {FlowError.from_json(message.error or {})}",
                )
            if went_well == 0 or (rounds is not None and went_well >= rounds):
                return {}
            rounds = went_well

    def _prepare(self, members: Sequence[Member], now: int) -> Limits:
        """Prepare the executor for all pending work; return the limits of the place that executes the work."""
        waiting = [
            read for member in members for read in member.task.reads(member.inputs, member.task.spec.inputs, now)
        ]
        later = [size for member in members for size in member.inputs.left.values()]
        return self._executor.prepare(Load(members[0].task.spec.name, sum(later, size_of(waiting)), 1), self._limits)

    def _plan(self, members: Sequence[Member], transactions: Sequence[Transaction], rounds: int | None) -> Plan:
        plans = [
            replace(member.derivation.plan(transaction), shape="cycle", slices=())
            for member, transaction in zip(members, transactions, strict=True)
        ]
        limits, size = transactions[0].limits, size_of([read for part in transactions for read in part.reads])
        # A document that is fed back is about as large as a stored document.
        documents = min(limits.documents, limits.bytes * size.documents // max(size.bytes, 1))
        uppers: dict[str, int] = {}
        for member in members:  # each task read the uppers at another time: no task may read beyond the lowest upper
            for name, upper in member.inputs.uppers.items():
                uppers[name] = min(upper, uppers.get(name, upper))
        cycle = Cycle(
            others=tuple(plans[1:]),
            positions=tuple(
                {spec.index: transaction.checkpoint.position(spec) for spec in member.task.spec.inputs}
                for member, transaction in zip(members, transactions, strict=True)
            ),
            uppers=uppers,
            documents=max(documents, 1),
            small=self._limits.small_documents,
            rounds=rounds,
        )
        return replace(plans[0], cycle=cycle)

    def _execute(self, plan: Plan, progress: Progress) -> list[Message]:
        """Execute a plan; return the error of a task as a message, and raise the loss of the task or of Spark."""
        try:
            return self._executor.execute(plan, progress)
        except (FencedError, EngineLostError):
            raise
        except FlowError as error:
            return [Message(error=error.to_json())]

    def _commit(
        self,
        members: Sequence[Member],
        transactions: Sequence[Transaction],
        messages: Sequence[Message],
        begun: float,
        planned: float,
    ) -> dict[str, Committed]:
        """Commit the prepared work of all tasks, which was planned from `begun` to `planned`."""
        executed = time.monotonic()
        prepared = [
            Prepared(
                message.documents_in,
                message.segments,
                message.shards,
                rejected=message.rejected,
                links=message.links,
                work=work_of([message], [spec.state_key for spec in member.task.spec.inputs]),
            )
            for member, message in zip(members, messages, strict=True)
        ]
        checkpoints, moves = [], []
        for member, transaction, message, ready in zip(members, transactions, messages, prepared, strict=True):
            reached = message.reached
            assert reached is not None
            positions = {spec.state_key: reached.positions[spec.index] for spec in member.task.spec.inputs}
            checkpoint = transaction.checkpoint.moved(positions, ready)
            checkpoints.append(checkpoint)
            commit = member.task.commit_of(checkpoint, ready)
            commit = member.derivation.recorded(transaction, commit, reached.begins)
            moves.append(TaskMove(transaction.capability, commit, member.derivation.updates(ready, reached.upper)))
        capabilities = self._store.commit_tasks(moves)
        phases = Phases(planned - begun, executed - planned, time.monotonic() - executed)
        return {
            member.task.spec.name: member.task.moved(capability, checkpoint, ready, transaction.reads, phases)
            for member, capability, checkpoint, ready, transaction in zip(
                members, capabilities, checkpoints, prepared, transactions, strict=True
            )
        }


def _has_moved(members: Sequence[Member], transactions: Sequence[Transaction], messages: Sequence[Message]) -> bool:
    """Return whether a cycle transaction has moved a position of a task; if not, the next one repeats it."""
    return any(
        message.reached is None or message.reached.positions[spec.index] != transaction.checkpoint.position(spec)
        for member, transaction, message in zip(members, transactions, messages, strict=True)
        for spec in member.task.spec.inputs
    )
