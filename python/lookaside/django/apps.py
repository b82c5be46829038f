"""The Django application: reads the setting `LOOKASIDE`, and names keys from then on."""

from __future__ import annotations

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ..key_naming import ROWS_MAX, Naming
from .compilers import Namer
from .watched_models import WatchedModels

DEFAULTS = {"KEYS": {}, "BY": "message", "ON_UNKNOWN": "raise", "ROWS_MAX": ROWS_MAX}


class LookasideConfig(AppConfig):
    """`"lookaside.django"` in INSTALLED_APPS."""

    name = "lookaside.django"
    label = "lookaside"
    verbose_name = "Lookaside"

    def ready(self) -> None:
        """All models are defined."""
        given = getattr(settings, "LOOKASIDE", {})
        unknown = sorted(set(given) - set(DEFAULTS))
        if unknown:
            raise ImproperlyConfigured(f"LOOKASIDE has no {', '.join(unknown)}; it has {', '.join(DEFAULTS)}")
        options = DEFAULTS | given
        if options["BY"] not in ("message", "outbox"):
            raise ImproperlyConfigured(f"LOOKASIDE['BY'] is {options['BY']!r}; expected 'message' or 'outbox'")
        try:
            naming = Naming(options["ON_UNKNOWN"], options["ROWS_MAX"])
        except ValueError as why:
            raise ImproperlyConfigured(f"LOOKASIDE: {why}") from None
        self.namer = Namer(WatchedModels(apps, options["KEYS"]), naming, options["BY"])
        self.namer.install()
