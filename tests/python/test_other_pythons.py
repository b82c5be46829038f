"""The extension module is one for Python 3.10 to 3.14 (abi3): the client's main tests, with each version found here."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from processes import ROOT
from tools import PYTHON_VERSIONS, find_python, need

# Of the versions of tests/requirements.txt.
PACKAGES = ("pymemcache", "pytest", "pytest-timeout")
# What depends on the version: the module itself, its exceptions, callbacks and futures, event loops and forks.
TESTS = ["test_client_calls.py", "test_async_client.py", "test_client_fork.py"]
# Tests that wait for seconds, which other versions do as the first one does.
SLOW = ["expires", "hangs", "frozen", "thousand", "process", "descriptor"]


def find_environment(version: str, interpreter: Path) -> Path:
    """The interpreter of a virtual environment that has PACKAGES. It is made once for each checkout."""
    lines = (ROOT / "tests/requirements.txt").read_text().splitlines()
    packages = [line for line in lines if line.partition("==")[0] in PACKAGES]
    environments = ROOT / "target" / "python-environments"
    environment = environments / "-".join([version, *packages])
    if not environment.exists():
        environments.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=environments) as name:
            made = Path(name) / "environment"
            subprocess.run([interpreter, "-m", "venv", "--without-pip", made], check=True)
            pip = [sys.executable, "-m", "pip", "--python", made / "bin" / "python"]
            subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
            # Another run may have made it meanwhile.
            with contextlib.suppress(OSError):
                made.rename(environment)
    return environment / "bin" / "python"


@pytest.mark.parametrize("version", PYTHON_VERSIONS)
def test_the_client_runs_with(version, tmp_path):
    if version == "{}.{}".format(*sys.version_info):
        pytest.skip(f"all tests run with Python {version}")
    need(f"python{version}")
    python = find_environment(version, find_python(version))
    tests = [ROOT / "tests" / "python" / name for name in TESTS]
    path = os.pathsep.join(str(ROOT / folder) for folder in ("python", "tests", "tests/python"))
    command = [
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "cluster_plugin",
        "--confcutdir", ROOT / "tests" / "python", "--basetemp", tmp_path / "tests",
        "-k", " and ".join(f"not {name}" for name in SLOW), *tests,
    ]  # fmt: skip
    # Without what this pytest, and its workers, have set for themselves.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
