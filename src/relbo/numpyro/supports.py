"""What the supports of a program's latents say about gradients: where p has an edge, and where q moves with phi.

A gradient along the path of z misses a boundary term where p has an edge inside the support of q
(`relbo.estimators.vrs_path`), and nearly every gradient does where the support of q itself depends on its parameters.
"""

from collections.abc import Callable
from typing import Any

import jax
from numpyro.distributions import constraints
from numpyro.ops.provenance import eval_provenance

_UNBOUNDED = (type(constraints.real), type(constraints.real_vector), type(constraints.real_matrix))
_HALF_LINES = (
    constraints.greater_than,
    constraints.greater_than_eq,
    constraints.less_than,
    constraints.less_than_eq,
)


def support_of(fn: Any) -> Any:
    """The support of a distribution, without the axes over which events extend; None where NumPyro does not know it."""
    try:
        support = fn.support
    except NotImplementedError:  # as of an affine transform of what is neither a line nor an interval
        return None
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return None if support is None or constraints.is_dependent(support) else support


def has_edge(model: Any, guide: Any) -> bool:
    """Whether the guide's distribution of a latent is known to reach beyond the model's.

    Kinds of supports are compared, a line, a half-line and what is bounded, but no numbers: while a step is compiled
    the ends of an interval may not be known.
    """
    supports = support_of(model), support_of(guide)
    return None not in supports and _extent(supports[1]) > _extent(supports[0])


def _extent(support: Any) -> int:
    return 2 if isinstance(support, _UNBOUNDED) else 1 if isinstance(support, _HALF_LINES) else 0


def moving(supports: Callable[[dict[str, Any]], dict[str, Any]], values: dict[str, Any]) -> tuple[str, ...]:
    """Names of the supports of which an end depends on the values, of parameters or shared latents."""
    sources = eval_provenance(lambda values: supports(values), values=values)
    return tuple(
        name
        for name, ends in sources.items()
        if any(jax.tree.leaves(ends, is_leaf=lambda leaf: isinstance(leaf, frozenset)))
    )
