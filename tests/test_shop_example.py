"""The example application: `examples/shop/run` opens the shop, pages show what the cache did, and nothing is left."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode

import pytest
from processes import PROGRAMS, ROOT, Process, eventually, free_port
from test_up import free_base, is_alive

SHOP = ROOT / "examples" / "shop"
START_S = 120


class Shop(Process):
    """A shop that is open."""

    def __init__(self, log_dir: Path) -> None:
        self.port, self.region_port = free_port(), free_base()
        options = ["--programs", PROGRAMS, "--port", self.port, "--region-port", self.region_port]
        super().__init__("shop", [sys.executable, SHOP / "run", *options], log_dir)
        self.wait_ready(lambda: "Ctrl-C stops all of it." in self.log(), START_S)

    def descendants(self) -> dict[int, str]:
        """The command lines of all processes that it has started, by pid."""
        found, new = {}, [self.running.pid]
        while new:
            children = [pid for parent in new for pid in children_of(parent)]
            found |= {pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in children}
            new = children
        return found

    def pid_of(self, program: str, port: int) -> int:
        """The pid of one of Lookaside's programs that clients connect to."""
        return next(pid for pid, line in self.descendants().items() if program in line and f"-p {port} " in line)

    def invalidator_pid(self) -> int:
        """The pid of the invalidator."""
        return next(pid for pid, line in self.descendants().items() if "lookaside-invalidator" in line)


def children_of(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


class Browser:
    """A customer with cookies."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self.cache: dict[str, int] = {}

    def open(self, path: str, **fields: object) -> str:
        """A page, or the one that follows a form; `cache` is then what the cache did for it."""
        data = urlencode(fields).encode() if fields else None
        with self._opener.open(self._url + path, data, timeout=20) as response:
            counts = re.findall(r"(\w+)=(\d+)", response.headers.get("X-Cache", ""))
            self.cache = {name: int(count) for name, count in counts}
            return response.read().decode()


def price_of(page: str) -> int:
    return int(re.search(r'id="price" data-cents="(\d+)"', page)[1])


def stock_of(page: str) -> int:
    return int(re.search(r'id="stock" data-quantity="(\d+)"', page)[1])


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    shop = Shop(tmp_path_factory.mktemp("shop"))
    yield shop
    shop.stop()


def test_the_shop(shop):
    # One test for all, as opening it takes seconds: the last part closes it.
    shopper = Browser(shop.port)
    pages_show_what_the_cache_did(shopper)
    an_order_takes_from_the_stock(shopper)
    a_new_name_stands_at_old_reviews(Browser(shop.port))
    redirects_name_what_was_sent(shop)
    a_new_price_is_seen_within_a_second(Browser(shop.port))
    the_load_script_finds_old_prices_if_there_are_any(shop)
    pages_work_without_a_cache_server(shop, shopper)
    pages_work_without_the_router(shop, shopper)
    nothing_is_left_of_it(shop)


def pages_show_what_the_cache_did(shopper: Browser) -> None:
    shopper.open("/")
    assert shopper.cache["loads"] == 50, "the list, 24 products, their stock, and the customer"
    page = shopper.open("/")
    assert (shopper.cache["loads"], shopper.cache["hits"]) == (0, 50)
    assert shopper.cache["round_trips"] == 3, "a plan of two levels, and the customer"
    assert shopper.cache["statements"] == 0
    assert '<code class="hit" title="hit">popular</code>' in page
    page = shopper.open("/product/1")
    assert '<code class="loaded" title="loaded">reviews_of:1</code>' in page and "FROM reviews" in page
    page = shopper.open("/product/1")
    assert '<code class="hit" title="hit">reviews_of:1</code>' in page and "FROM reviews" not in page
    assert "<svg" in shopper.open("/cache")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        shopper.open("/product/4321")


def an_order_takes_from_the_stock(shopper: Browser) -> None:
    before = stock_of(shopper.open("/product/2"))
    page = shopper.open("/cart", product=2)
    assert '<a href="/product/2">' in page and re.search(r'<code class="named">cart:\d+</code>', page)
    shopper.open("/cart", product=2)
    page = shopper.open("/checkout", order="")
    assert "is on its way" in page and '<code class="named">stock:2</code>' in page
    assert stock_of(shopper.open("/product/2")) == before - 2


def a_new_name_stands_at_old_reviews(reviewer: Browser) -> None:
    # Once the names were cached with the reviews, under a key that a change of a name does not make stale.
    reviewer.open("/product/5/review", stars=5, text="It is still in use.")
    customer = re.search(r'<code class="[a-z]+" title="[a-z]+">customer:(\d+)</code>', reviewer.open("/cart"))[1]
    reviewer.open("/product/5")
    page = reviewer.open("/name", name="Ada <Lovelace>")
    assert f'<code class="named">customer:{customer}</code>' in page
    assert f'data-customer="{customer}">Ada &lt;Lovelace&gt;</span>' in reviewer.open("/product/5")


def redirects_name_what_was_sent(shop: Shop) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=20)
    form = urlencode({"product": 6, "price_cents": 1_000, "category": "a&b=c d\r\nX-Injected: 1"})
    connection.request("POST", "/owner/price", form, {"Content-Type": "application/x-www-form-urlencoded"})
    response = connection.getresponse()
    assert response.status == 303 and response.getheader("X-Injected") is None
    assert response.getheader("Location") == "/owner?category=a%26b%3Dc+d%0D%0AX-Injected%3A+1"
    connection.close()


def a_new_price_is_seen_within_a_second(visitor: Browser) -> None:
    # The form writes to the database alone: the invalidator deletes what is cached.
    before = price_of(visitor.open("/product/3"))
    visitor.open("/product/3")
    assert visitor.cache["loads"] == 0
    page = visitor.open("/owner/price", product=3, price_cents=before + 1)
    assert '<code class="named">product:3</code>' in page
    eventually(lambda: price_of(visitor.open("/product/3")) == before + 1, "the new price is shown", seconds=1)


def the_load_script_finds_old_prices_if_there_are_any(shop: Shop) -> None:
    invalidator = shop.invalidator_pid()
    for is_stopped in (False, True):
        if is_stopped:
            os.kill(invalidator, signal.SIGSTOP)
        options = ["--url", f"http://127.0.0.1:{shop.port}", "--seconds", "2", "--clients", "2", "--stale-ms", "600"]
        load = subprocess.run([sys.executable, SHOP / "load", *options], capture_output=True, text=True, timeout=60)
        os.kill(invalidator, signal.SIGCONT)
        assert (load.returncode != 0) == is_stopped, load.stdout + load.stderr
        for what in ("price", "name"):
            assert re.search(rf"[1-9]\d* {what} changes; the oldest {what} shown", load.stdout), load.stdout


def pages_work_without_a_cache_server(shop: Shop, shopper: Browser) -> None:
    for port in (shop.region_port + 10, shop.region_port + 11):
        os.kill(shop.pid_of("lookaside-server", port), signal.SIGKILL)
        shopper.open("/category/lamps")
        shopper.open("/product/3")
        shopper.open("/cart", product=4)
        assert '<a href="/product/4">' in shopper.open("/cart")


def pages_work_without_the_router(shop: Shop, shopper: Browser) -> None:
    os.kill(shop.pid_of("lookaside-router", shop.region_port), signal.SIGKILL)
    page = shopper.open("/product/3")
    assert "the cache did not answer" in page
    reviewers = set(re.findall(r'data-customer="(\d+)"', page))
    assert shopper.cache["hits"] == 0
    assert shopper.cache["loads"] == 4 + len(reviewers), "product, stock, reviews, their customers, and the shopper"
    assert '<a href="/product/5">' in shopper.open("/cart", product=5)


def nothing_is_left_of_it(shop: Shop) -> None:
    folder = Path(re.search(r"logs +(\S+)", shop.log())[1])
    descendants = shop.descendants()
    for program in ("postgres", "lookaside up", "lookaside-invalidator", "uvicorn"):
        assert any(program in line for line in descendants.values()), descendants
    assert folder.is_dir()
    shop.running.send_signal(signal.SIGINT)
    assert shop.running.wait(30) == 0, shop.log()
    eventually(lambda: not any(is_alive(pid) for pid in descendants), "all processes have ended")
    assert not folder.exists()


def test_a_taken_port_is_named_with_the_option_to_choose_another(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = Process("run", [sys.executable, SHOP / "run", "--programs", PROGRAMS, "--port", port], tmp_path)
        assert run.running.wait(60) == 1
    assert f"port {port} of 127.0.0.1 is taken" in run.log() and "--port" in run.log()


def test_the_tests_install_what_the_shop_requires():
    installed = (ROOT / "tests" / "requirements.txt").read_text().split()
    names = [line.replace("SQLAlchemy[asyncio]", "SQLAlchemy") for line in installed]
    assert set((SHOP / "requirements.txt").read_text().split()) <= set(names)
