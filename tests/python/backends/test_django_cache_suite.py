"""Django's own tests of caches, with the backend. They are in Django's source, which `tests/fetch_django` fetches."""

import os
import subprocess
import sys

import pytest
from processes import ROOT


# Half a minute each, which they sleep for the most part.
@pytest.mark.time_intensive
@pytest.mark.parametrize("version", ["4.2", "5.2"])
def test_djangos_own_tests(address, version):
    source = subprocess.check_output([ROOT / "tests" / "fetch_django", version], text=True).strip()
    path = os.pathsep.join([source, f"{source}/tests", str(ROOT / "python")])
    program = [sys.executable, ROOT / "tests" / "python" / "backends" / "django_cache_suite.py", address]
    ended = subprocess.run(program, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
