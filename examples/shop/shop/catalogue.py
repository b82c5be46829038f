"""What pages read, all of it through the cache: an entity has a key, and a loader that reads it from the database.

A loader gets the keys that missed, and reads their rows by one statement. What several pages show is cached once.
"""

from collections.abc import Callable, Iterable
from typing import Any

from lookaside import LookasideError, Node, Plan
from sqlalchemy import Select, func, select

from .models import CartItem, Customer, Order, OrderItem, Product, Review, Stock
from .visit import Visit

#: No key needs an expiry to stay right: deletes see to that. It bounds what a forgotten name of a key could do.
TTL_S = 3_600
#: The list of popular products is not invalidated, as every order changes it: it may be as old as this.
POPULAR_TTL_S = 5
POPULAR_PRODUCTS = 24

Row = dict[str, Any]


def product(visit: Visit, id: int) -> Row | None:
    """A product, with its stock and its reviews; None if there is none.

    Three round trips: the product and its stock, its reviews, and the names of their customers. These names have keys
    of their own: cached with the reviews, they would stay when a customer changes the name.
    """
    plan = visit.cache.plan()
    row = plan.node([f"product:{id}"], loader(visit, products))
    stock = plan.node([f"stock:{id}"], loader(visit, stocks))
    results = visit.cache.run_plan(plan, ttl=TTL_S)
    found = results[row][f"product:{id}"]
    if found is None:
        return None
    # While another client loads the reviews, those from before the last one will do.
    reviews = visit.cache.get_or_load(f"reviews_of:{id}", lambda: reviews_of(visit, id), ttl=TTL_S, stale=True)
    name_of = customer_names(visit, [review["customer_id"] for review in reviews])
    named = [{**review, "name": name_of[f"customer:{review['customer_id']}"]} for review in reviews]
    return {**found, "stock": results[stock][f"stock:{id}"], "reviews": named}


def category(visit: Visit, name: str) -> list[Row]:
    """The products of a category, with their stock, in two round trips: their ids, then all of them."""
    key = f"products_of:{name}"
    plan = visit.cache.plan()
    ids = plan.node([key], lambda _: [ids_of_category(visit, name)])
    return listed(visit, plan, lambda values: values[key], after=[ids])


def popular(visit: Visit) -> list[Row]:
    """The products that were ordered most, with their stock."""
    plan = visit.cache.plan()
    ids = plan.node(["popular"], lambda _: [popular_ids(visit)], ttl=POPULAR_TTL_S)
    return listed(visit, plan, lambda values: values["popular"], after=[ids])


def listed(visit: Visit, plan: Plan, ids_of: Callable[..., list[int]], after: list[Node]) -> list[Row]:
    """Products, by a plan with their ids: `ids_of` gets the values of the nodes in `after`, and returns the ids."""
    rows = plan.node(lambda *of: [f"product:{id}" for id in ids_of(*of)], loader(visit, products), after=after)
    stock = plan.node(lambda *of: [f"stock:{id}" for id in ids_of(*of)], loader(visit, stocks), after=after)
    results = visit.cache.run_plan(plan, ttl=TTL_S)
    found = zip(results[rows].values(), results[stock].values(), strict=True)
    return [{**row, "stock": left} for row, left in found if row]


def seen_lately(visit: Visit, ids: Iterable[int]) -> list[Row]:
    """Those of these products that are cached. A decoration: not worth a query."""
    try:
        return [row for row in visit.cache.get_many([f"product:{id}" for id in ids]).values() if row]
    except LookasideError:
        return []


def customer_name(visit: Visit) -> str:
    """The customer's name."""
    return customer_names(visit, [visit.customer])[f"customer:{visit.customer}"]


def customer_names(visit: Visit, ids: Iterable[int]) -> dict[str, str]:
    """The names of customers, by their keys."""
    return visit.cache.get_or_load_many([f"customer:{id}" for id in ids], loader(visit, names), ttl=TTL_S)


def cart(visit: Visit) -> list[Row]:
    """The products in the customer's cart, and how many of each."""
    key = f"cart:{visit.customer}"
    items = visit.cache.get_or_load(key, lambda: cart_items(visit), ttl=TTL_S)
    keys = [f"product:{item['product_id']}" for item in items]
    rows = visit.cache.get_or_load_many(keys, loader(visit, products), ttl=TTL_S)
    return [{**row, "quantity": item["quantity"]} for row, item in zip(rows.values(), items, strict=True) if row]


def orders(visit: Visit) -> list[Row]:
    """The customer's orders, the last one first."""
    query = (
        select(Order.id, Order.ordered_at, func.sum(OrderItem.quantity * OrderItem.price_cents).label("total_cents"))
        .join(OrderItem)
        .where(Order.customer_id == visit.customer)
        .group_by(Order.id)
        .order_by(Order.id.desc())
        .limit(8)
    )
    key = f"orders_of:{visit.customer}"
    return visit.cache.get_or_load(key, lambda: [dict(row) for row in visit.database.rows(query)], ttl=TTL_S)


# The rows of the database, by id.


def loader(visit: Visit, rows_of: Callable[[Visit, list[int]], dict[int, Any]]) -> Callable[[list[str]], Any]:
    """A loader of keys that end in an id."""

    def load(keys: list[str]) -> list[Any]:
        ids = [int(key.rsplit(":", 1)[1]) for key in keys]
        rows = rows_of(visit, ids)
        return [rows.get(id) for id in ids]

    return load


def products(visit: Visit, ids: list[int]) -> dict[int, Row]:
    """Products."""
    query = select(Product.id, Product.category, Product.name, Product.description, Product.price_cents)
    return {row["id"]: row for row in visit.database.rows(query.where(Product.id.in_(ids)))}


def stocks(visit: Visit, ids: list[int]) -> dict[int, int]:
    """How many there are of each product."""
    query = select(Stock.product_id, Stock.quantity).where(Stock.product_id.in_(ids))
    return {row["product_id"]: row["quantity"] for row in visit.database.rows(query)}


def names(visit: Visit, ids: list[int]) -> dict[int, str]:
    """The names of customers."""
    query = select(Customer.id, Customer.name).where(Customer.id.in_(ids))
    return {row["id"]: row["name"] for row in visit.database.rows(query)}


def reviews_of(visit: Visit, id: int) -> list[Row]:
    """The last reviews of a product."""
    query = select(Review.stars, Review.text, Review.customer_id).where(Review.product_id == id)
    return visit.database.rows(query.order_by(Review.id.desc()).limit(6))


def ids_of_category(visit: Visit, name: str) -> list[int]:
    """The products of a category."""
    return ids(visit, select(Product.id).where(Product.category == name).order_by(Product.id))


def popular_ids(visit: Visit) -> list[int]:
    """The products that were ordered most: a query over all orders."""
    query = select(OrderItem.product_id.label("id")).group_by(OrderItem.product_id)
    return ids(visit, query.order_by(func.sum(OrderItem.quantity).desc(), "id").limit(POPULAR_PRODUCTS))


def cart_items(visit: Visit) -> list[Row]:
    """What is in the customer's cart."""
    query = select(CartItem.product_id, CartItem.quantity).where(CartItem.customer_id == visit.customer)
    return visit.database.rows(query.order_by(CartItem.product_id))


def ids(visit: Visit, query: Select) -> list[int]:
    """A column of ids."""
    return [row["id"] for row in visit.database.rows(query)]
