"""One fixture for each way in which a client of another language is served."""

import pytest
from certificates import Authority
from endpoints import KINDS, PASSWORD, USER, Endpoint


@pytest.fixture(params=KINDS)
def open_server(request, tmp_path):
    """A server without TLS and passwords."""
    endpoint = Endpoint(request.param, tmp_path)
    yield endpoint
    endpoint.stop()


@pytest.fixture(params=KINDS)
def secured_server(request, tmp_path):
    """A server that accepts only TLS."""
    endpoint = Endpoint(request.param, tmp_path, authority=Authority(tmp_path))
    yield endpoint
    endpoint.stop()


@pytest.fixture
def guarded_server(tmp_path):
    """A server that requires SASL."""
    endpoint = Endpoint("lookaside", tmp_path, f"{USER}:{PASSWORD}\n")
    yield endpoint
    endpoint.stop()
