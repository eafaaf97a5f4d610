"""What Spark's analysed plans tell of a view: which functions make a measure, and what a column is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

_NOT_ADDITIVE = frozenset(
    {
        "any_value", "approx_count_distinct", "approx_percentile", "avg", "bit_and", "bit_or", "bit_xor", "bool_and",
        "bool_or", "collect_set", "first", "first_value", "kurtosis", "last", "last_value", "max", "max_by", "mean",
        "median", "min", "min_by", "mode", "percentile", "percentile_approx", "skewness", "std", "stddev", "stddev_pop",
        "stddev_samp", "var_pop", "var_samp", "variance",
    }
)  # fmt: skip
"""Aggregate functions of which no two values add up to that of all rows, by Spark's names."""


def not_additive(aggregated: DataFrame, measure: str) -> str:
    """Return a function by which an aggregate makes a measure although its values do not add up; empty for none.

    Only functions that are known not to: of the user's own ones nothing is known.
    """
    plan = _plan(aggregated)
    made = _aliases(plan, below_aggregates=False)
    for each in _traced(_named(plan, measure), made):
        for part in _parts(each):
            if _kind(part) == "AggregateExpression":
                name = str(part.aggregateFunction().prettyName())
                if part.isDistinct():
                    return f"{name} of distinct values"
                if name in _NOT_ADDITIVE:
                    return name
    return ""


def is_passed_on(counted: DataFrame, rows: DataFrame, column: str) -> bool:
    """Return whether a transform gives a column of `rows` as it is, under whatever names on the way.

    Only then Spark knows of its watermark: metadata follow a name, but no expression.
    """
    plan, given = _plan(counted), {_id(each): str(each.name()) for each in _items(_plan(rows).output())}
    made, at = _aliases(plan, below_aggregates=True), _id(_named(plan, column))
    while at not in given and at in made and _kind(child := made[at].child()) == "AttributeReference":
        at = _id(child)
    return given.get(at) == column


def made_of(counted: DataFrame, rows: DataFrame, column: str) -> set[str] | None:
    """Return from which columns of `rows` a transform makes a column; None where the plan does not show it."""
    plan, given = _plan(counted), _plan(rows)
    known = {_id(each): str(each.name()) for each in _items(given.output())}
    found = _named(plan, column)
    if found is None:
        return None
    # Mostly passed on as it is.
    if _id(found) in known:
        return {known[_id(found)]}
    made = {number: each for number, each in _aliases(plan, below_aggregates=True).items() if number not in known}
    ends = {_id(part) for each in _traced(found, made) for part in _parts(each) if _kind(part) == "AttributeReference"}
    ends -= made.keys()
    return {known[each] for each in ends} if _id(found) in made and ends <= known.keys() else None


def _plan(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _named(plan: Any, column: str) -> Any:
    """Return the attribute of a plan's column; None for no column of that name, and for several."""
    # As in Spark, names that differ in case alone are one.
    found = [each for each in _items(plan.output()) if str(each.name()).lower() == column.lower()]
    return found[0] if len(found) == 1 else None


def _aliases(plan: Any, *, below_aggregates: bool) -> dict[int, Any]:
    """Return what a plan names, by the number of the name."""
    made, nodes = {}, [plan]
    while nodes:
        node = nodes.pop()
        kind = _kind(node)
        if kind in ("Project", "Aggregate"):
            named = node.projectList() if kind == "Project" else node.aggregateExpressions()
            made.update({_id(each): each for each in _items(named) if _kind(each) == "Alias"})
        if below_aggregates or kind != "Aggregate":
            nodes += _items(node.children())
    return made


def _traced(attribute: Any, made: dict[int, Any]) -> Iterator[Any]:
    """Yield the expressions that a column is made by, from the last one back."""
    asked, seen = [] if attribute is None else [_id(attribute)], set()
    while asked:
        if (number := asked.pop()) in made and number not in seen:
            seen.add(number)
            yield made[number]
            asked += [_id(part) for part in _parts(made[number]) if _kind(part) == "AttributeReference"]


def _parts(expression: Any) -> Iterator[Any]:
    yield expression
    for each in _items(expression.children()):
        yield from _parts(each)


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _id(named: Any) -> int:
    return int(named.exprId().id())


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
