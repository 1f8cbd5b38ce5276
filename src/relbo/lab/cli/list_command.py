"""`relbo list`: every estimator, what it ascends and what it needs."""

import json
from typing import Any

import typer
from rich.table import Table

from relbo.lab.cli.printing import print_table


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command("list")
    def list_estimators(
        as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    ) -> None:
        """List the estimators: bound, unbiased or not, needs, paper.

        **Examples**

        - `relbo list`

        - `relbo list --json`
        """
        rows = estimator_rows()
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in rows[0]:
            table.add_column(column, no_wrap=column != "paper")
        for row in rows:
            table.add_row(*(("yes" if v else "no") if isinstance(v, bool) else v for v in row.values()))
        print_table(table)


def bound_of(cls: Any) -> str:
    """The bound that an estimator ascends, whatever its number of draws."""
    from relbo import bounds

    bound = cls().bound
    return "IS-K" if isinstance(bound, bounds.IS) else bound.label


def estimator_rows() -> list[dict[str, str | bool]]:
    """One row for each estimator of the registry."""
    from relbo.estimators import REGISTRY  # JAX takes a second to load; --help should not

    return [
        {
            "estimator": name,
            "class": cls.__name__,
            "bound": bound_of(cls),
            "unbiased": cls.unbiased,
            "needs": cls.needs.value,
            "paper": cls.paper,
        }
        for name, cls in REGISTRY.items()
    ]
