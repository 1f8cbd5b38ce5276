import pytest

from relbo.lab.cli import main


@pytest.fixture
def relbo(capsys):
    """Runs the command line; returns (exit code, standard output, standard error)."""

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return call
