"""Creates the tables and fills them, always with the same data. A database with products is left as it is.

python -m shop.sample_data postgres://USER:PASSWORD@HOST:PORT/DATABASE
"""

import random
import sys
from typing import Any

from sqlalchemy import Engine, create_engine, insert, select, text
from sqlalchemy.orm import Session

from .database import sqlalchemy_url
from .models import Base, Customer, Order, OrderItem, Product, Review, Stock

CATEGORIES = ["lamps", "chairs", "cups", "notebooks", "plants", "bags"]
PRODUCTS_PER_CATEGORY = 30
CUSTOMERS = 100
REVIEWS = 1_200
ORDERS = 600

NAMES = {
    "lamps": ["Desk lamp", "Floor lamp", "Reading lamp", "Lantern", "Wall lamp", "Pendant"],
    "chairs": ["Chair", "Stool", "Armchair", "Bench", "Rocking chair", "Folding chair"],
    "cups": ["Cup", "Mug", "Bowl", "Tea glass", "Jug", "Saucer"],
    "notebooks": ["Notebook", "Sketchbook", "Diary", "Planner", "Guest book", "Pocket book"],
    "plants": ["Fern", "Cactus", "Palm", "Ivy", "Aloe", "Fig tree"],
    "bags": ["Backpack", "Tote bag", "Satchel", "Pouch", "Weekender", "Courier bag"],
}
STYLES = ["Plain", "Small", "Tall", "Nordic", "Classic", "Everyday", "Slim", "Old-style", "Quiet", "Sturdy"]
REVIEW_TEXTS = [
    "As described, and well packed.",
    "Does what it should.",
    "Smaller than I expected, but good.",
    "I bought a second one.",
    "The colour is a little different from the picture.",
    "A present, and it was liked.",
]


def fill(engine: Engine, seed: int = 1) -> bool:
    """Creates what is missing; whether the tables were empty."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        if session.scalar(select(Product.id).limit(1)) is not None:
            return False
        for table, rows in sample_rows(random.Random(seed)).items():
            session.execute(insert(table), rows)
        for table in ("reviews", "orders"):
            session.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table}"))
    return True


def sample_rows(rng: random.Random) -> dict[type[Base], list[dict[str, Any]]]:
    """The rows of each table."""
    products = [
        {
            "id": number,
            "category": category,
            "name": f"{rng.choice(STYLES)} {rng.choice(NAMES[category]).lower()}",
            "description": "Made to be used every day, and to be repaired when it breaks.",
            "price_cents": rng.randrange(5, 180) * 100 - 5,
        }
        for number, category in enumerate(sorted(CATEGORIES * PRODUCTS_PER_CATEGORY), start=1)
    ]
    ids = [product["id"] for product in products]
    # Some products are far more popular than others.
    weights = [1 / (1 + rng.randrange(len(ids))) for _ in ids]
    orders = [{"id": number, "customer_id": rng.randrange(CUSTOMERS) + 1} for number in range(1, ORDERS + 1)]
    return {
        Product: products,
        Stock: [{"product_id": id, "quantity": rng.randrange(20, 400)} for id in ids],
        Customer: [{"id": id, "name": f"Customer {id}"} for id in range(1, CUSTOMERS + 1)],
        Review: [
            {
                "id": number,
                "product_id": rng.choices(ids, weights)[0],
                "customer_id": rng.randrange(CUSTOMERS) + 1,
                "stars": rng.choice([3, 4, 4, 5, 5, 5]),
                "text": rng.choice(REVIEW_TEXTS),
            }
            for number in range(1, REVIEWS + 1)
        ],
        Order: orders,
        OrderItem: [
            {"order_id": order["id"], "product_id": id, "quantity": rng.randrange(1, 4), "price_cents": 1_000}
            for order in orders
            for id in sorted(set(rng.choices(ids, weights, k=3)))
        ],
    }


if __name__ == "__main__":
    created = fill(create_engine(sqlalchemy_url(sys.argv[1])))
    print("the shop's tables are filled" if created else "the shop's tables are there already")
