"""The programs that the pages of docs/clients print work as printed, with real clients, databases and invalidator."""

import pytest
from cached_keys import cached, fill, gone
from page import Page
from scripts import HEAVY, WHY_NOT
from shop import Shop, Users
from toolchains import TOOLCHAINS, build_page

pytestmark = [pytest.mark.skipif(not HEAVY, reason=WHY_NOT), pytest.mark.timeout(600)]

CASES = [(name, kind) for name, toolchain in TOOLCHAINS.items() for kind in toolchain.urls]


@pytest.fixture(scope="module")
def built():
    """Builds the program of a page once; the folder of its files."""
    folders = {}

    def build(name: str):
        if name not in folders:
            folders[name] = build_page(name)
        return folders[name]

    return build


@pytest.fixture
def page(case):
    """The page of this case."""
    return Page(case[0])


@pytest.fixture
def shop(case, page, built, request, tmp_path):
    """The page's program in front of its region."""
    toolchain, kind = TOOLCHAINS[page.name], case[1]
    folder = built(page.name)
    server = request.getfixturevalue(kind)
    url = toolchain.urls[kind].format(port=server.port)
    shop = Shop(page, toolchain.command(folder), url, Users(kind, server), tmp_path)
    yield shop
    shop.stop()


def check_that_it_deletes(shop: Shop, key: str, *words) -> None:
    """The program, called with these words, makes one key stale, and that is deleted in every cluster."""
    keys = [key, "user:0", "user:4"]
    fill([shop.two], keys)
    before = shop.users.writing_transactions()
    shop.run(*words)
    assert shop.users.writing_transactions() == before + 1, "the row and its keys are written in one transaction"
    gone(shop.clusters, [key])
    assert cached([shop.two], keys) == {("two", "user:0"), ("two", "user:4")}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_reads_of_page(shop):
    assert shop.run("read", 42).startswith("database")
    shop.fill(42)
    assert shop.run("read", 42) == "cache: Ada"
    # The value was read before the delete.
    assert shop.read_during_delete(43) == "database, not stored: Grace"
    assert cached([shop.one], ["user:43"]) == set()


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_writes_of_page(shop):
    shop.users.set_up()
    shop.invalidate()
    shop.fill(42)
    check_that_it_deletes(shop, "user:42", "rename", 42, "Lovelace")
    assert shop.users.name(42) == "Lovelace"
    assert shop.run("read", 42) in ("database: Lovelace", "database, not stored: Lovelace")
    check_that_it_deletes(shop, "user:44", "create", 44, "Barbara")
    check_that_it_deletes(shop, "user:44", "remove", 44)


@pytest.mark.parametrize("case", [case for case in CASES if case[1] == "mariadb"], ids="-".join)
def test_comment_of_page(shop):
    shop.invalidate("--comments-only")
    check_that_it_deletes(shop, "user:42", "rename-by-comment", 42, "Lovelace")
    assert shop.users.name(42) == "Lovelace"


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_rules_of_page(page, shop):
    rules = page.write_files() / "rules.toml"
    if shop.users.kind == "postgres":
        rules = shop.folder / "rules.toml"
        rules.write_text(page.files()["rules.toml"].replace('"app.users"', '"public.users"'))
    shop.users.set_up("--rules", str(rules))
    shop.invalidate("--rules", str(rules))
    fill([shop.two], ["user:42", "user:43", "user:0"])
    shop.run("rename-all", "Lovelace")
    gone([shop.two], ["user:42", "user:43"])
    assert cached([shop.two], ["user:0"]) == {("two", "user:0")}
    assert shop.users.name(43) == "Lovelace"
