"""For Django: a backend of its cache, and the keys of what its ORM writes, named in the transaction that writes it.

    CACHES = {"default": {"BACKEND": "lookaside.django.LookasideCache", "LOCATION": ["127.0.0.1:5000"]}}

    INSTALLED_APPS = [..., "lookaside.django"]

    class User(models.Model):
        email = models.EmailField(unique=True)

        class Lookaside:
            keys = ["user:{id}", "user_by_email:{email}"]

The invalidator deletes the keys after the commit; what is rolled back, also to a savepoint, deletes nothing. See
docs/clients/python_backends.md and docs/clients/python_orm.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InexpressibleValueError, InvalidKeyError
from ..key_naming import KeysUnknownError, KeysUnknownWarning, Statistics
from .cache import LookasideCache

if TYPE_CHECKING:
    from .apps import LookasideConfig
    from .compilers import Namer

__all__ = [
    "InexpressibleValueError",
    "InvalidKeyError",
    "KeysUnknownError",
    "KeysUnknownWarning",
    "LookasideCache",
    "Statistics",
    "name_keys",
    "statistics",
]


def name_keys(*keys: str, using: str = "default") -> None:
    """Names further keys in the current transaction, such as those of a list. Raises `InvalidKeyError`."""
    from django.db import connections, transaction

    from .compilers import check_keys

    with transaction.atomic(using=using, savepoint=False):
        namer().name_keys(connections[using], check_keys(keys))


def statistics() -> Statistics:
    """Counters of this process."""
    return namer().naming.statistics


def namer() -> Namer:
    """The one that the application has installed."""
    from django.apps import apps

    config: LookasideConfig = apps.get_app_config("lookaside")
    return config.namer
