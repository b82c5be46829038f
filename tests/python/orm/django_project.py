"""A Django project whose databases come and go with the tests."""

import django
import pymysql
from django.conf import settings
from django.db import connections

ALIAS = "default"

if not settings.configured:
    # The driver that Django expects, by the one that is installed.
    pymysql.install_as_MySQLdb()
    settings.configure(
        INSTALLED_APPS=["django_shop", "lookaside.django"],
        DATABASES={ALIAS: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        TIME_ZONE="Europe/Paris",
        LOOKASIDE={
            "KEYS": {"django_shop.User_teams": ["teams_of:{user}", "members_of:{team}"]},
            "BY": "outbox",
        },
    )
    django.setup()

from django.apps import apps  # noqa: E402 - after the setup

namer = apps.get_app_config("lookaside").namer


class Project:
    """The project on one database."""

    def __init__(self, database) -> None:
        self.kind = database.kind
        connections[ALIAS].close()
        configured = connections.configure_settings({ALIAS: dict(database.django)})
        connections.settings[ALIAS] = configured[ALIAS]
        del connections[ALIAS]
        self.connection = connections[ALIAS]
        with self.connection.schema_editor() as editor:
            for model in apps.get_app_config("django_shop").get_models():
                editor.create_model(model)

    def named(self) -> set[str]:
        """The keys that committed transactions have named since the last call."""
        outbox = "lookaside_journal" if self.kind == "sqlite" else "lookaside_outbox"
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT {self.connection.ops.quote_name('key')} FROM {outbox}")
            keys = [key for (key,) in cursor.fetchall()]
            cursor.execute(f"DELETE FROM {outbox}")
        return {key.decode() if isinstance(key, bytes) else key for key in keys}

    def close(self) -> None:
        """Closes the connection."""
        connections[ALIAS].close()
