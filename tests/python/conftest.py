"""Clients of the Python package, in front of one cluster."""

import pytest
from lookaside import Client


@pytest.fixture
def address(cluster):
    """The cluster's router."""
    return f"127.0.0.1:{cluster.port}"


@pytest.fixture
def cache(address):
    """A client that blocks."""
    with Client([address], timeout=5) as cache:
        yield cache
