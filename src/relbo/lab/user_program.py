"""A NumPyro program of the user's own: `FILE_OR_MODULE:FUNCTION`, with `FUNCTION() -> (model, guide, params, args)`.

    relbo variance --program regression.py:make

`params` are values of the parameters, as `svi.run(...).params`; `args` the tuple of positional arguments of both.
"""

from typing import Any

from relbo.lab import user_model


def make_program(words: str) -> tuple[Any, Any, dict[str, Any], tuple]:
    """Calls the user's function.

    Raises:
        ValueError: the file cannot be run, it has no such function, the function fails, or it returns something else.
    """
    function = user_model.load_function(words, "program")
    found = user_model.guarded(f"the program's function {words} failed", function)
    parts = found if isinstance(found, tuple) else ()
    if len(parts) != 4 or not isinstance(parts[2], dict) or not isinstance(parts[3], tuple):
        raise ValueError(
            f"the program's function {words} must return (model, guide, params, args), params a dictionary and args a "
            f"tuple, got {type(found).__name__}."
        )
    return parts
