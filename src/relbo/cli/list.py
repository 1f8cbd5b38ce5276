"""`relbo list`: every estimator, what it ascends and what it needs."""

import json

import typer
from rich.console import Console
from rich.table import Table

NEEDS = {
    "AbstractProposal": "any proposal",
    "AbstractBernoulliProposal": "Bernoulli layers",
    "AbstractReparameterizedProposal": "reparameterised z",
}
"""What a class that a proposal must derive from means to a user."""


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
        console = Console()
        if not console.is_terminal:
            console.width = 160  # piped output has no window to fit into
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in rows[0]:
            table.add_column(column, no_wrap=column != "paper")
        for row in rows:
            table.add_row(*(("yes" if v else "no") if isinstance(v, bool) else v for v in row.values()))
        console.print(table)


def estimator_rows() -> list[dict[str, str | bool]]:
    """One row for each estimator of the registry."""
    from relbo.estimators import REGISTRY  # JAX takes a second to load; --help should not

    return [
        {
            "estimator": name,
            "class": cls.__name__,
            "bound": cls.bound.value,
            "unbiased": cls.unbiased,
            "needs": NEEDS.get(cls.requires.__name__, cls.requires.__name__),
            "paper": cls.paper,
        }
        for name, cls in REGISTRY.items()
    ]
