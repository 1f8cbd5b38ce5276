"""`relbo reproduce`: the paper's figures and tables."""

import typer


def register(app: typer.Typer) -> None:
    """Adds the command group."""
    group = typer.Typer(help="Reproduce the paper's figures and tables.", no_args_is_help=True)
    app.add_typer(group, name="reproduce")

    @group.callback()
    def options() -> None:
        """Reproduce the paper's figures and tables."""
