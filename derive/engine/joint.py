"""Joint transactions: the derivations of a cycle go on together, as far as they can, and commit as one.

By itself each task of a cycle takes one step after another, with a transaction and a commit for each; how far a step
goes depends on what the others have published so far. A joint transaction has one worker take all those steps. Where it
fails, the rounds of steps before are taken jointly once more, and then each task takes its own step, so that the one
which fails is the one that stops, and the others go as far as they can.
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
from derive.engine.transaction import Committed, Prepared, Transaction
from derive.errors import EngineLostError, FencedError, FlowError
from derive.shard.message import Message
from derive.shard.plan import Cycle, Plan
from derive.shard.progress import Progress
from derive.storage.metadata.descriptions import CollectionUpdate, TaskMove
from derive.storage.roles import Runnable
from derive.storage.task_log import TaskLog
from derive.time.cycle import Step
from derive.time.extent import size_of
from derive.time.limits import Limits, Load

_MOST_PATIENCE = 64


@dataclass(frozen=True, slots=True)
class Member:
    """A task of a cycle, before a joint transaction.

    Attributes:
        task: the task.
        derivation: its transactor.
        inputs: what it has seen.
        step: what it would do next by itself, if anything.
    """

    task: Task
    derivation: Derivation
    inputs: Inputs
    step: Step | None


class Joint:
    """Joint transactions of one cycle.

    Args:
        store: the data folder.
        executor: carries them out.
        derivations: of the cycle, in the order in which they take turns.
        limits: how work is cut.
    """

    def __init__(self, store: Runnable, executor: Executor, derivations: Sequence[Derivation], limits: Limits) -> None:
        self._store = store
        self._executor = executor
        self._derivations = derivations
        self._limits = limits
        self._log = TaskLog(store.root, derivations[0].spec.name)
        self._apart = 0  # how many turns each task takes by itself before the next joint transaction, …
        self._patience = 1  # … and how many after the next one that fails

    def advance(
        self,
        tasks: Mapping[str, Task],
        looks: Mapping[str, Inputs],
        steps: Mapping[str, Step | None],
        now: int,
        working: Callable[[str, int], None],
    ) -> dict[str, Committed]:
        """Run one joint transaction, as far as frontiers and limits allow.

        Args:
            tasks: of the cycle, by name.
            looks: what each has seen.
            steps: what each would do next by itself.
            now: up to which the sources are sealed.
            working: told of each task that it is at work, by its name and 0, and then how many documents the first one
                has processed; not called if there is no transaction.

        Returns:
            What was done, by task; empty if each task is to take its step by itself.

        Raises:
            FencedError: another run has taken over.
            EngineLostError: nothing can be run any more.
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
        begun = time.monotonic()
        for member in members:
            working(member.task.spec.name, 0)
        return self._try(members, now, partial(working, members[0].task.spec.name), begun)

    def _is_worthwhile(self, members: Sequence[Member]) -> bool:
        """Whether there is more to do than to let time pass, and nothing that is better shared between shards."""
        steps = [(member, member.step) for member in members if member.step and member.step.has_documents]
        return bool(steps) and all(
            member.task.shards == 1
            or self._limits.is_small(size_of(member.task.reads(member.inputs, step.behind, step.bound)))
            for member, step in steps
        )

    def _try(self, members: Sequence[Member], now: int, progress: Progress, begun: float) -> dict[str, Committed]:
        """Run as many rounds of turns as go well, and commit them."""
        rounds: int | None = None
        while True:
            limits = self._prepare(members, now)
            transactions = [
                member.task.begin(member.inputs, member.task.spec.inputs, now, limits) for member in members
            ]
            messages = self._execute(self._plan(members, transactions, rounds), progress)
            errors = [message for message in messages if message.error]
            if not errors:
                if rounds is None:
                    self._patience = 1
                return self._commit(members, transactions, messages, begun)
            self._apart, self._patience = self._patience, min(2 * self._patience, _MOST_PATIENCE)
            went_well = min(message.rounds for message in errors)
            for message in errors:
                self._log.write("warn", f"a joint transaction failed: {FlowError.from_json(message.error or {})}")
            if went_well == 0 or (rounds is not None and went_well >= rounds):
                return {}
            rounds = went_well

    def _prepare(self, members: Sequence[Member], now: int) -> Limits:
        """Have the executor ready, which is told of all that waits; how work is cut where it is carried out."""
        waiting = [
            read for member in members for read in member.task.reads(member.inputs, member.task.spec.inputs, now)
        ]
        return self._executor.prepare(Load(members[0].task.spec.name, size_of(waiting), 1), self._limits)

    def _plan(self, members: Sequence[Member], transactions: Sequence[Transaction], rounds: int | None) -> Plan:
        plans = [
            replace(member.derivation.plan(transaction), shape="cycle", slices=())
            for member, transaction in zip(members, transactions, strict=True)
        ]
        limits, size = transactions[0].limits, size_of([read for part in transactions for read in part.reads])
        # What is fed back is about as large as what is stored.
        documents = min(limits.documents, limits.bytes * size.documents // max(size.bytes, 1))
        uppers: dict[str, int] = {}
        for member in members:  # which have not looked at the same moment: what one has not seen, none may go beyond
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
        """Carry it out; whatever goes wrong is a message, and what a run ends by is raised."""
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
    ) -> dict[str, Committed]:
        """Commit what all of them have prepared."""
        prepared = [Prepared(message.documents_in, message.segments, message.shards) for message in messages]
        checkpoints, moves = [], []
        for member, transaction, message, ready in zip(members, transactions, messages, prepared, strict=True):
            reached = message.reached
            assert reached is not None
            positions = {spec.state_key: reached.positions[spec.index] for spec in member.task.spec.inputs}
            checkpoint = transaction.checkpoint.moved(positions, ready.tokens)
            checkpoints.append(checkpoint)
            update = CollectionUpdate(reached.task, ready.segments, reached.upper)
            moves.append(TaskMove(transaction.capability, member.task.commit_of(checkpoint, ready), [update]))
        capabilities = self._store.commit_tasks(moves)
        return {
            member.task.spec.name: member.task.moved(capability, checkpoint, ready, begun)
            for member, capability, checkpoint, ready in zip(members, capabilities, checkpoints, prepared, strict=True)
        }
