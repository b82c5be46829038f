"""The Python of docs/clients.md, docs/clients/python.md and python/README.md runs as printed, but for the addresses.

The Rust of docs/clients.md is compiled as printed.
"""

import json
import re
import types

import pytest
from certificates import Authority
from processes import ROOT


class Database:
    """Stands for the application's database."""

    def __init__(self) -> None:
        self.names = {id: f"user {id}" for id in range(100)}
        self.named: list[str] = []

    def execute(self, sql: str, values: tuple) -> None:
        """The statements of the page."""
        if sql.startswith("INSERT INTO lookaside_outbox"):
            self.named.append(values[0])
            return
        assert sql.startswith("UPDATE user SET name")
        name, id = values
        self.names[id] = name

    def commit(self) -> None:
        """Nothing to do."""


def run_page(page: str, cluster, authority: Authority | None = None, **names) -> types.SimpleNamespace:
    """The names that are defined after all code of a page has run."""
    database = Database()

    async def load_user_async(id):
        return {"name": database.names[id]}

    names |= {
        "database": database,
        "master": database,
        "load_user_from": lambda source, id: {"name": database.names[id], "from": source},
        "load_user": lambda id: {"name": database.names[id]},
        "load_users": lambda keys: [{"name": database.names[int(key[5:])]} for key in keys],
        "load_friends": lambda keys: [[7, 9]],
        "load_user_async": load_user_async,
    }
    # The file of an application that names no routers. Apart from their names it is the router's configuration.
    file = cluster.log_dir / "named-routers.json"
    file.write_text(json.dumps(cluster.configuration() | {"routers": [f"127.0.0.1:{cluster.port}"]}))
    for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        code = code.replace("127.0.0.1:5000", f"127.0.0.1:{cluster.port}")
        # The cluster's router has a routing prefix.
        configuration = f'config="file:{file}", routing_prefix="/local/{cluster.name}/"'
        code = code.replace('config="file:router.json"', configuration)
        if "Tls(" in code:
            certificate, key = authority.sign("client")
            for name, file in (("ca.pem", authority.certificate), ("client.pem", certificate), ("client.key", key)):
                code = code.replace(f'"{name}"', f'"{file}"')
        exec(code, names)
    return types.SimpleNamespace(**names)


def test_the_page(cluster, capsys, tmp_path):
    page = run_page("docs/clients/python.md", cluster, Authority(tmp_path))
    assert page.read_user(3) == {"name": "user 3"}
    page.rename_user(3, "ada")
    assert page.read_user(3) == {"name": "ada"}
    assert page.profile(42) == {"id": 42, "locale": "en"}
    assert capsys.readouterr().out == "user 7\nuser 9\n"
    assert len(page.users) == 100 and page.users[7] == {"name": "user 7"}
    assert page.direct.get("user:3") == {"name": "ada"}
    assert page.hedged.get_or_load("user:3", lambda: "loaded") == {"name": "ada"}
    page.rename_user_here(4, "eve")
    assert page.read_user_here(4) == {"name": "eve", "from": "master"}
    key, marker = page.master.named
    assert key == "user:4" and marker.startswith("marker:user:4|#|")
    page.tuned.set("user:3", {"name": "eve"})
    assert page.tuned.delete("user:3")
    for client in (page.direct, page.tuned, page.hedged, page.secured, page.cache):
        client.close()


def test_the_readme(cluster):
    page = run_page("python/README.md", cluster)
    assert page.user == {"name": "user 42"}
    assert page.cache.get("user:42") is None
    page.cache.close()


def test_the_python_of_the_page_of_all_clients(cluster):
    loads = []
    page = run_page("docs/clients.md", cluster, load=lambda key: loads.append(key) or b"ada")
    assert (page.value, loads) == (b"ada", ["user:42"])
    assert page.cache.get("user:42") is None, "deleted"
    page.cache.close()


def test_the_rust_of_the_page_of_all_clients_is_compiled():
    """A module of the crate repeats it, which rustdoc compiles with what the page leaves out, in lines with a `#`."""
    module = (ROOT / "crates/client/src/clients_page.rs").read_text()
    compiled = []
    for block in re.findall(r"^/// ```(?:no_run)?\n(.*?)^/// ```$", module, re.DOTALL | re.MULTILINE):
        lines = [line.removeprefix("///").removeprefix(" ") for line in block.splitlines()]
        compiled.append("\n".join(line for line in lines if line != "#" and not line.startswith("# ")))
    printed = re.findall(r"```rust\n(.*?)\n```", (ROOT / "docs/clients.md").read_text(), re.DOTALL)
    assert compiled == printed


@pytest.mark.parametrize("name", ["get", "get_many", "get_or_load", "cached", "run_plan", "pool", "explain", "stats"])
def test_both_clients_have_the_calls_of_the_page(name):
    from lookaside import AsyncClient, Client

    assert f"`{name}(" in (ROOT / "docs/clients/python.md").read_text() or name == "run_plan"
    for client in (Client, AsyncClient):
        assert getattr(client, name).__doc__
