"""A program that runs Django's own tests of caches, of the Django in the path, with Lookaside's backend.

    django_cache_suite.py ROUTER...

They are those of Django's memcached backends, except what is about the client library of these, and those of the cache
middleware. They are imported from Django's source, `tests/cache`, which must be in the path.
"""

import sys
import warnings

import django
from django.conf import settings
from django.test.runner import DiscoverRunner
from django.test.utils import override_settings

BACKEND = {"BACKEND": "lookaside.django.LookasideCache", "LOCATION": sys.argv[1:]}


def main() -> bool:
    """Whether all tests have passed."""
    settings.configure(
        CACHES={"default": BACKEND},
        DATABASES={name: {"ENGINE": "django.db.backends.sqlite3"} for name in ("default", "other")},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        INSTALLED_APPS=["django.contrib.sites", "cache"],
        ROOT_URLCONF=[],
        SECRET_KEY="of tests",
        SITE_ID=1,
    )
    django.setup()
    # As Django's runner of its own tests has it.
    warnings.simplefilter("error", ResourceWarning)
    warnings.simplefilter("error", RuntimeWarning)
    from cache import tests as published
    from django.test import TestCase
    from lookaside import RefusedError

    @override_settings(CACHES=published.caches_setting_for_tests(base=BACKEND, exclude=["cull", "zero_cull"]))
    class LookasideCacheTests(published.BaseMemcachedTests, TestCase):
        base_params = BACKEND
        incr_decr_type_error = RefusedError
        # These look into the client library; test_django_cache.py has the same of ours.
        test_location_multiple_servers = None
        test_close = None
        test_set_many_returns_failing_keys = None

    class LookasideMiddlewareTests(published.CacheMiddlewareTest):
        """The middleware and its decorators."""

    class LookasideHeadTests(published.CacheHEADTest):
        """Replies to HEAD."""

    cases = [LookasideCacheTests]
    for case in (LookasideMiddlewareTests, LookasideHeadTests):
        aliases = published.caches_setting_for_tests(base=BACKEND, exclude=["cull", "zero_cull"])
        aliases["other"] = BACKEND | {"TIMEOUT": "1", "KEY_PREFIX": "other"}
        cases.append(override_settings(CACHES=aliases)(case))

    class Runner(DiscoverRunner):
        """Of these classes alone."""

        def build_suite(self, *arguments: object, **options: object) -> object:
            load = self.test_loader.loadTestsFromTestCase
            return self.test_suite(load(case) for case in cases)

    return Runner(verbosity=1, interactive=False).run_tests([]) == 0


if __name__ == "__main__":
    sys.exit(not main())
