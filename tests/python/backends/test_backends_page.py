"""The Python of docs/clients/python_backends.md runs as printed, but for the addresses."""

import re

import test_dogpile  # noqa: F401 - registers the backend
from lookaside.client_base import TIMEOUT_S
from lookaside.django import LookasideCache
from processes import ROOT

PAGE = (ROOT / "docs" / "clients" / "python_backends.md").read_text()


def test_the_pages_timeouts():
    """The default is as in the code. Nothing shorter is shown: a router needs half of it to give up a server."""
    assert f"| `timeout` | {TIMEOUT_S} |" in PAGE
    for timeout in re.findall(r'"timeout": ([\d.]+)', PAGE):
        assert float(timeout) >= TIMEOUT_S


def test_the_page(address, plain):
    loads = []

    def load_user(id):
        loads.append(id)
        return {"name": f"user {id}"}

    names = {"load_user": load_user, "__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code.replace("127.0.0.1:5000", address), names)

    parameters = dict(names["CACHES"]["default"])
    assert parameters.pop("BACKEND") == "lookaside.django.LookasideCache"
    django_cache = LookasideCache(parameters.pop("LOCATION"), parameters)
    assert django_cache.get_or_set("user:42", lambda: load_user(42)) == {"name": "user 42"}
    assert plain.get(":1:user:42") is not None

    assert names["name"] == "user 42"
    client = names["app"].test_client()
    for path in ("/user/7", "/profile/7", "/user/7", "/profile/7"):
        assert client.get(path).text == "user 7"
    assert loads == [42, 42, 7, 7]
    assert plain.get("shop:user:7") is not None
