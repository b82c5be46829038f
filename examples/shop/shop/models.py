"""The tables, and the keys under which their rows are cached.

Keys stand beside the columns. Whatever changes a row by SQLAlchemy names its keys in the same transaction, so that no
code that writes has to think of the cache.
"""

from sqlalchemy import ForeignKey, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    pass


class Product(Base):
    """What changes rarely. The list of a category has the ids of its products alone."""

    __tablename__ = "products"
    __lookaside_keys__ = ["product:{id}", "products_of:{category}"]

    id: Mapped[int] = mapped_column(primary_key=True)
    category: Mapped[str] = mapped_column(index=True)
    name: Mapped[str]
    description: Mapped[str]
    price_cents: Mapped[int]


class Stock(Base):
    """What changes with each order: a key of its own, so that an order makes little else stale."""

    __tablename__ = "stock"
    __lookaside_keys__ = ["stock:{product_id}"]

    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"), primary_key=True)
    quantity: Mapped[int]


class Customer(Base):
    __tablename__ = "customers"
    __lookaside_keys__ = ["customer:{id}"]

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Review(Base):
    __tablename__ = "reviews"
    __lookaside_keys__ = ["reviews_of:{product_id}"]

    id: Mapped[int] = mapped_column(primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"), index=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    stars: Mapped[int]
    text: Mapped[str]


class CartItem(Base):
    __tablename__ = "cart_items"
    __lookaside_keys__ = ["cart:{customer_id}"]

    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"), primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"), primary_key=True)
    quantity: Mapped[int]


class Order(Base):
    __tablename__ = "orders"
    __lookaside_keys__ = ["orders_of:{customer_id}"]

    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"), index=True)
    ordered_at: Mapped[str] = mapped_column(server_default=func.to_char(func.now(), "YYYY-MM-DD HH24:MI"))
    items: Mapped[list["OrderItem"]] = relationship()


class OrderItem(Base):
    """No keys: an order does not change, and the list of popular products may be some seconds old."""

    __tablename__ = "order_items"

    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"), primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"), primary_key=True)
    quantity: Mapped[int]
    price_cents: Mapped[int]
