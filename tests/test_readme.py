"""The application code that README prints works as printed."""

import re

from processes import ROOT


def application(port: int) -> dict:
    """The names that the code defines, with the port of a router instead of the printed one."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    names: dict = {}
    exec(code.replace("127.0.0.1:5000", f"127.0.0.1:{port}"), names)
    return names


def test_a_miss_is_filled_under_a_lease_and_then_hits(cluster):
    read = application(cluster.port)["read"]
    loads = []

    def load(key: str) -> bytes:
        loads.append(key)
        return b"Ada"

    assert [read("user:1", load), read("user:1", load)] == [b"Ada", b"Ada"]
    assert loads == ["user:1"]


def test_a_value_read_before_a_delete_is_not_cached(cluster):
    names = application(cluster.port)

    def load(key: str) -> bytes:
        assert cluster.client().delete(key) is False
        return b"old"

    assert names["read"]("user:2", load) == b"old"
    assert names["cache"].get("user:2") is None
