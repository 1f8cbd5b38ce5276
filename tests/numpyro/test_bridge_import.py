"""NumPyro is optional: relbo does not import it, and says what to install where it is needed."""

import subprocess
import sys


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_the_core_does_not_import_numpyro():
    result = python("import sys, relbo, relbo.lab.cli; assert 'numpyro' not in sys.modules")
    assert result.returncode == 0, result.stderr


def test_without_numpyro_the_error_names_the_extra():
    result = python("import sys; sys.modules['numpyro'] = None; import relbo.numpyro")
    assert result.returncode != 0
    assert "pip install 'relbo[numpyro]'" in result.stderr
