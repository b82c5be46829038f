"""What changes the database. Nothing here knows of the cache: models name the keys (`models`), in each transaction."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from .models import CartItem, Customer, Order, OrderItem, Product, Review, Stock


class SoldOut(Exception):
    """There is not enough of a product; nothing was ordered. It is named by the argument."""


def add_to_cart(session: Session, customer: int, product: int) -> None:
    """Puts one more of a product into the customer's cart."""
    lock_customer(session, customer)
    item = session.get(CartItem, (customer, product))
    if item:
        item.quantity += 1
    else:
        session.add(CartItem(customer_id=customer, product_id=product, quantity=1))


def remove_from_cart(session: Session, customer: int, product: int) -> None:
    """Takes a product out of the customer's cart."""
    item = session.get(CartItem, (customer, product))
    if item:
        session.delete(item)


def order_cart(session: Session, customer: int) -> int | None:
    """Orders what is in the customer's cart, at the prices in the database; the order's number, or None if it is empty.

    Raises `SoldOut`.
    """
    lock_customer(session, customer)
    items = session.scalars(
        # In this order all transactions lock stock, so that no two of them wait for each other.
        select(CartItem).where(CartItem.customer_id == customer).order_by(CartItem.product_id)
    ).all()
    if not items:
        return None
    order = Order(customer_id=customer)
    session.add(order)
    for item in items:
        product = session.get_one(Product, item.product_id)
        stock = session.get_one(Stock, item.product_id, with_for_update=True)
        if stock.quantity < item.quantity:
            raise SoldOut(product.name)
        stock.quantity -= item.quantity
        sold = OrderItem(product_id=item.product_id, quantity=item.quantity, price_cents=product.price_cents)
        order.items.append(sold)
        session.delete(item)
    session.flush()
    return order.id


def add_review(session: Session, customer: int, product: int, stars: int, text: str) -> None:
    """Adds a review."""
    session.add(Review(customer_id=customer, product_id=product, stars=stars, text=text))


def change_price(session: Session, product: int, price_cents: int) -> None:
    """Changes a price."""
    session.get_one(Product, product, with_for_update=True).price_cents = price_cents


def rename(session: Session, customer: int, name: str) -> None:
    """Changes the customer's name."""
    session.get_one(Customer, customer, with_for_update=True).name = name


def lock_customer(session: Session, customer: int) -> None:
    """One change of a customer's cart at a time."""
    session.execute(select(Customer.id).where(Customer.id == customer).with_for_update())
