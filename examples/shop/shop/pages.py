"""The pages. A page reads and writes by `catalogue` and `orders`; its panel shows what that took.

The environment has SHOP_DATABASE (postgres://...), SHOP_ROUTER and SHOP_INVALIDATOR (HOST:PORT).
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import anyio.to_thread
from fastapi import FastAPI, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from sqlalchemy.exc import IntegrityError, NoResultFound

from . import catalogue, orders
from .charts import line_chart
from .sample_data import CATEGORIES, CUSTOMERS
from .totals import SAMPLES, Totals
from .visit import Visit, Visits

FOLDER = Path(__file__).parent
#: Threads that serve requests.
THREADS = 16
COOKIE_S = 30 * 86_400
SEEN_LATELY = 5

visits = Visits(os.environ["SHOP_DATABASE"], os.environ["SHOP_ROUTER"])
totals = Totals(os.environ["SHOP_INVALIDATOR"])
templates = Jinja2Templates(FOLDER / "templates")
templates.env.globals["categories"] = CATEGORIES
templates.env.filters["euros"] = lambda cents: f"{cents / 100:,.2f} €"
templates.env.filters["ms"] = lambda seconds: f"{seconds * 1_000:.2f} ms"
#: What the last form of a customer did, for the panel of the page that follows it.
last_forms: dict[int, Visit] = {}


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Samples the totals each second while the shop is open."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS

    async def sample() -> None:
        while True:
            await asyncio.to_thread(totals.sample)
            await asyncio.sleep(1)

    sampling = asyncio.create_task(sample())
    yield
    sampling.cancel()
    visits.close()


app = FastAPI(lifespan=lifespan, openapi_url=None)
app.mount("/static", StaticFiles(directory=FOLDER / "static"))


def page(request: Request, template: str, read: Callable[[Visit], dict[str, Any] | None]) -> Response:
    """A page of what `read` returns; not found if that is None. The header X-No-Cache bypasses the cache."""
    customer = customer_of(request)
    with visits.begin(customer, "x-no-cache" in request.headers) as visit:
        values = read(visit) or {}
        status = 200 if values else 404
        frame = {"shopper": catalogue.customer_name(visit), "visit": visit, "form": last_forms.pop(customer, None)}
        summary = visit.summary()
        totals.add(summary)
        name = template if values else "not_found.html"
        response = templates.TemplateResponse(request, name, {**frame, **values}, status_code=status)
        response.headers["X-Cache"] = " ".join(f"{name}={count}" for name, count in summary.items())
        cache_ms, database_ms = visit.total("seconds") * 1_000, visit.seconds * 1_000
        response.headers["Server-Timing"] = f"cache;dur={cache_ms:.3f}, database;dur={database_ms:.3f}"
    response.set_cookie("customer", str(customer), max_age=COOKIE_S, samesite="lax")
    return response


def form(request: Request, target: str, change: Callable[[Visit], None]) -> Response:
    """Executes the change of a form, and leads to a page."""
    customer = customer_of(request)
    with visits.begin(customer, is_bypassed=False) as visit:
        change(visit)
        last_forms[customer] = visit
    response = RedirectResponse(target, status_code=303)
    response.set_cookie("customer", str(customer), max_age=COOKIE_S, samesite="lax")
    return response


def customer_of(request: Request) -> int:
    """The customer of the cookie. There is no login: a visitor without a cookie becomes one of the customers."""
    cookie = request.cookies.get("customer", "")
    return int(cookie) if cookie.isdecimal() and 0 < int(cookie) <= CUSTOMERS else random.randrange(CUSTOMERS) + 1


@app.exception_handler(NoResultFound)
@app.exception_handler(IntegrityError)
def row_is_missing(_request: Request, _error: Exception) -> Response:
    """A form named a product that does not exist."""
    return HTMLResponse("There is no such product.", status_code=404)


@app.get("/")
def show_popular(request: Request) -> Response:
    return page(request, "list.html", lambda visit: {"title": "Popular now", "products": catalogue.popular(visit)})


@app.get("/category/{name}")
def show_category(request: Request, name: str) -> Response:
    def read(visit: Visit) -> dict[str, Any] | None:
        products = catalogue.category(visit, name) if name in CATEGORIES else None
        return products and {"title": name.capitalize(), "products": products, "category": name}

    return page(request, "list.html", read)


@app.get("/product/{id}")
def show_product(request: Request, id: int) -> Response:
    seen = [int(other) for other in request.cookies.get("seen", "").split("-") if other.isdecimal()]

    def read(visit: Visit) -> dict[str, Any] | None:
        product = catalogue.product(visit, id)
        others = [other for other in seen if other != id][:SEEN_LATELY]
        return product and {"product": product, "seen": catalogue.seen_lately(visit, others)}

    response = page(request, "product.html", read)
    if response.status_code == 200:
        now_seen = dict.fromkeys([id, *seen])
        response.set_cookie("seen", "-".join(map(str, list(now_seen)[: SEEN_LATELY + 1])), samesite="lax")
    return response


@app.post("/product/{id}/review")
def add_review(
    request: Request, id: int, stars: Annotated[int, Form(ge=1, le=5)], text: Annotated[str, Form(max_length=200)]
) -> Response:
    def change(visit: Visit) -> None:
        with visit.transaction() as session:
            orders.add_review(session, visit.customer, id, stars, text)

    return form(request, f"/product/{id}", change)


@app.get("/cart")
def show_cart(request: Request, ordered: int | None = None, sold_out: str | None = None) -> Response:
    def read(visit: Visit) -> dict[str, Any]:
        items = catalogue.cart(visit)
        total_cents = sum(item["price_cents"] * item["quantity"] for item in items)
        found = {"items": items, "total_cents": total_cents, "orders": catalogue.orders(visit)}
        return {**found, "ordered": ordered, "sold_out": sold_out}

    return page(request, "cart.html", read)


@app.post("/cart")
def add_to_cart(request: Request, product: Annotated[int, Form()]) -> Response:
    def change(visit: Visit) -> None:
        with visit.transaction() as session:
            orders.add_to_cart(session, visit.customer, product)

    return form(request, "/cart", change)


@app.post("/cart/remove")
def remove_from_cart(request: Request, product: Annotated[int, Form()]) -> Response:
    def change(visit: Visit) -> None:
        with visit.transaction() as session:
            orders.remove_from_cart(session, visit.customer, product)

    return form(request, "/cart", change)


@app.post("/checkout")
def check_out(request: Request) -> Response:
    result: dict[str, Any] = {}

    def change(visit: Visit) -> None:
        try:
            with visit.transaction() as session:
                result["ordered"] = orders.order_cart(session, visit.customer)
        except orders.SoldOut as sold_out:
            result["sold_out"] = sold_out.args[0]

    response = form(request, "/cart", change)
    response.headers["location"] = "/cart?" + urlencode({name: value for name, value in result.items() if value})
    return response


@app.post("/name")
def change_name(request: Request, name: Annotated[str, Form(min_length=1, max_length=40)]) -> Response:
    def change(visit: Visit) -> None:
        with visit.transaction() as session:
            orders.rename(session, visit.customer, name)

    return form(request, "/cart", change)


@app.get("/owner")
def show_prices(request: Request, category: str = CATEGORIES[0]) -> Response:
    def read(visit: Visit) -> dict[str, Any] | None:
        products = catalogue.category(visit, category) if category in CATEGORIES else None
        return products and {"products": products, "category": category}

    return page(request, "owner.html", read)


@app.post("/owner/price")
def change_price(
    request: Request,
    product: Annotated[int, Form()],
    price_cents: Annotated[int, Form(ge=1, le=10_000_000)],
    category: Annotated[str, Form()] = CATEGORIES[0],
) -> Response:
    """Writes to the database alone, as any program beside the shop would: the invalidator deletes in the cache."""

    def change(visit: Visit) -> None:
        with visit.database.transaction() as session:
            orders.change_price(session, product, price_cents)

    return form(request, "/owner?" + urlencode({"category": category}), change)


@app.get("/cache")
def show_totals(request: Request) -> Response:
    return templates.TemplateResponse(request, "cache.html", totals_shown())


@app.get("/cache/totals")
def show_totals_alone(request: Request) -> Response:
    """What the page replaces each second."""
    return templates.TemplateResponse(request, "totals.html", totals_shown())


def totals_shown() -> dict[str, Any]:
    samples = list(totals.samples)
    ratios = [sample.hit_ratio and sample.hit_ratio * 100 for sample in samples]
    p50, p99 = [sample.delete_p50_ms for sample in samples], [sample.delete_p99_ms for sample in samples]
    hits, loads = [float(sample.hits) for sample in samples], [float(sample.loads) for sample in samples]
    counts = totals.counts
    keys = counts["hits"] + counts["loads"]
    return {
        "counts": counts,
        "hit_ratio": counts["hits"] / keys if keys else None,
        "invalidator": totals.invalidator,
        "p50_ms": totals.latency_ms("p50"),
        "p99_ms": totals.latency_ms("p99"),
        "hit_ratio_chart": line_chart("Hit ratio", {"hit ratio": ratios}, " %", 100, SAMPLES),
        "keys_chart": line_chart("Keys each second", {"from the cache": hits, "loaded": loads}, "", 10, SAMPLES),
        "latency_chart": line_chart("Commit to empty", {"p50": p50, "p99": p99}, " ms", 2, SAMPLES),
    }
