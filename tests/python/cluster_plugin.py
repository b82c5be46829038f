"""A cluster for tests of an interpreter that lacks the drivers of databases, which tests/conftest.py imports."""

import pytest
from processes import Cluster


@pytest.fixture
def cluster(tmp_path):
    """One cluster."""
    cluster = Cluster("one", tmp_path)
    yield cluster
    cluster.stop()
