"""The sides of a comparison of views: the sums that each holds of a key, and the classes that the keys fall into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.pipelines.spec import AdditiveView
from include.reconciliation import EXAMPLES, Difference, DifferenceClass, Reconciliation


def all_sides(sides: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of all sides, with the column `side`."""
    return reduce(DataFrame.unionByName, (frame.withColumn("side", F.lit(name)) for name, frame in sides.items()))


def summed_by_side(view: AdditiveView, sides: Iterable[str]) -> list[Column]:
    """Return the sums `<side>_<measure>` of `all_sides`, 0 where there is nothing, which a null sum is too."""
    return [each for side in sides for each in summed(view, side, [side])]


def summed(view: AdditiveView, name: str, sides: Sequence[str], less: Sequence[str] = ()) -> list[Column]:
    """Return the sums `<name>_<measure>` of `all_sides` over the sides, less those of others.

    Each is 0 where there is nothing, which a null sum is too. They are sums of rows: where two sums of decimals are
    added, Spark takes digits off the result.
    """
    side = F.col("side")

    def of(measure: str) -> Column:
        return F.when(side.isin(*sides), F.col(measure)).when(side.isin(*less), -F.col(measure))

    return [F.coalesce(F.sum(of(measure)), F.lit(0)).alias(f"{name}_{measure}") for measure in view.measures]


def every_measure(view: AdditiveView, condition: Callable[[str], Column]) -> Column:
    """Return whether a condition holds of every measure."""
    return reduce(and_, (condition(measure) for measure in view.measures))


Explanation = tuple[str, str, str]
"""What, where and the evidence of a key that is not matched."""


def reconciled(
    classed: DataFrame,
    weight: Column,
    order: Sequence[str],
    explanations: Mapping[DifferenceClass, Callable[..., Explanation]],
    *about: object,
) -> Reconciliation:
    """Count the keys of a frame by its column `class`, each by its weight, and name the first `EXAMPLES` of a class.

    `explanations`: by class, in the order in which keys are named; each takes a key's row, and `about`. In one pass:
    keeping all keys, with what each side holds of them, would take longer than comparing them.
    """
    place = F.when(F.col("class").isin(*explanations), F.struct(*order))
    firsts = F.min_by(F.struct(*classed.columns), place, EXAMPLES)
    counted = classed.groupBy("class").agg(F.sum(weight).alias("n"), firsts.alias("first")).collect()
    found = {row["class"]: row for row in counted}
    named = [
        Difference(cls, *explain(row, *about))
        for cls, explain in explanations.items()
        if cls in found
        for row in found[cls]["first"] or ()
    ]
    return Reconciliation.of(named, {name: int(row["n"]) for name, row in found.items()})
