"""Names the cache keys of what SQLAlchemy 2 writes, in the transaction that writes it.

    class User(Base):
        __tablename__ = "users"
        __lookaside_keys__ = ["user:{id}", "user_by_email:{email}"]
        ...

    watch(engine, Base)

The invalidator deletes the keys after the commit; what is rolled back, also to a savepoint, deletes nothing. See
docs/clients/python_orm.md.
"""

from ..errors import InexpressibleValueError, InvalidKeyError
from ..key_naming import KeysUnknownError, KeysUnknownWarning, Statistics
from .watcher import Watcher, watch

__all__ = [
    "InexpressibleValueError",
    "InvalidKeyError",
    "KeysUnknownError",
    "KeysUnknownWarning",
    "Statistics",
    "Watcher",
    "watch",
]
