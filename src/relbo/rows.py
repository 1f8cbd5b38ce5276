r"""Rows of a batch as lanes of one `jax.vmap`, for pairs that are called row by row but run for all rows together.

`RowView.each` calls a function for each row and names the axis of the rows. A program that cannot run for one row alone
takes part by `for_all_rows`: each row hands in its own values, the program runs once on those of all, and each row
takes its own part of what comes out. Rows must not depend on each other; then the derivative of a row's result in its
own values is right too, and costs one run backwards for all rows.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import PyTree

ROWS = "relbo rows"
"""Name of the axis of the rows."""


def for_all_rows(function: Callable[[PyTree], PyTree], own: PyTree) -> Any:
    """This row's part of `function(values of all rows)`, all leaves having the rows as first axis.

    Called inside of `jax.vmap(..., axis_name=ROWS)`. Every row asks for all of the result and is given its own part by
    a sum over the b rows that ask, hence divided by b: `vmap` makes a product of that sum, and its transpose brings the
    cotangents of all rows together *before* they go back through the function.
    """
    result = function(jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, ROWS), own))
    num_rows = jax.lax.axis_size(ROWS)
    return jax.tree.map(lambda leaf: jax.lax.psum_scatter(leaf, ROWS) / num_rows, result)
