"""The errors of many scaled operators, taken together: they partly cancel.

The interval of a scaled time says how far one operator may be off. Which tiles a multiplication gets, or how much of a tensor a cache
holds, is a matter of its own shapes, so operators of different shapes err independently of each other, and those of equal shapes alike.
The half-width of a sum of independent errors is the root of the sum of their squares. Taking the low ends of all operators at once, and
then the high ends, would add them up instead, and give a step of thirty equal operators more than five times its interval.

This holds where the cost models of accelerators price each shape. A CPU core is described by two numbers for all of its operators, whose
errors do not cancel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lumos.changes.layout.prices import TaskPrices
    from lumos.trace.table import Int64


def average(prices: TaskPrices, before: TaskPrices, tasks: Int64, source: Int64) -> None:
    """Narrow the intervals of tasks in place, so that their sum has that of a sum of independent errors.

    prices, before: of every task of the measured graph, after and before the change that errs. source: of each of `tasks` a number, equal
    for those that err alike.
    """
    known = np.all([column[tasks] > 0 for column in before.columns], axis=0)
    tasks, source = tasks[known], source[known]
    was = before.best[tasks]
    middle = prices.best[tasks] / was
    for column, earlier in ((prices.low, before.low), (prices.high, before.high)):
        half_width = column[tasks] / earlier[tasks] - middle
        together = np.bincount(source, np.abs(half_width) * before.ns[tasks])
        if together.any():
            cancelled = np.linalg.norm(together) / together.sum()
            column[tasks] = earlier[tasks] * (middle + cancelled * half_width)
