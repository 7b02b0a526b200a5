"""Plans as text: every operator with its tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from derive.algebra.expression_parts import is_unnest
from derive.algebra.relation import GlobalId
from derive.compute.plans.plan import Counted, Fixed, Grouped, Keyed, Linear, Plan, Recomputed, Source, inputs_of


def explained(plan: Plan, names: Mapping[GlobalId, str]) -> str:
    """Return a plan as lines, each operator before its inputs, which are indented.

    Args:
        plan: the plan.
        names: names of sources.
    """
    return "\n".join(_lines(plan, names, 0))


def _lines(plan: Plan, names: Mapping[GlobalId, str], depth: int) -> Iterator[str]:
    yield "  " * depth + _line(plan, names)
    for source in inputs_of(plan):
        yield from _lines(source, names, depth + 1)


def _line(plan: Plan, names: Mapping[GlobalId, str]) -> str:  # noqa: PLR0911 - one for each kind
    match plan:
        case Source(id=identifier):
            return f"read {names.get(identifier, f'u{identifier}')}"
        case Fixed(rows=rows):
            return f"constant of {len(rows)} {'row' if len(rows) == 1 else 'rows'}"
        case Linear(terms=terms):
            joined = max(len(term.leaves) for term in terms)
            kinds = ["join" if joined > 1 else "map and filter", f"{len(terms)} added up" if len(terms) > 1 else ""]
            return f"tier 1: {', '.join(filter(None, kinds))}"
        case Grouped(aggregates=()):
            return "tier 2: distinct rows"
        case Grouped(aggregates=aggregates):
            return f"tier 2: groups with {', '.join(aggregate.function for aggregate in aggregates)}"
        case Counted(operator=operator):
            return f"tier 2: {operator.value}"
        case Keyed():
            return f"tier 3: worked out anew for keys that change: {_kind(plan)}"
        case Recomputed(reason=reason):
            return f"tier 4: worked out anew as a whole ({reason}): {_kind(plan)}"


def _kind(plan: Keyed | Recomputed) -> str:
    words = {"OuterJoin": "outer join", "TopK": "first rows", "Window": "window", "Filter": "filter"}
    name = "Unnest" if is_unnest(plan.relation) else type(plan.relation).__name__
    return words.get(name, name.lower())
