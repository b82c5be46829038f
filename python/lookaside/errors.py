"""What can go wrong in a call. All of it is a `LookasideError`.

A miss is not an error, and a cache that fails is none for `get_or_load`: it loads the value.
"""


class LookasideError(Exception):
    """The base of all errors of this package."""


class InvalidKeyError(LookasideError, ValueError):
    """The key is empty, over 250 bytes, or has white space or control characters. Nothing was sent."""


class InexpressibleValueError(LookasideError, ValueError):
    """A value that has no form in a key, such as a floating-point number or NaN."""


class ConfigurationError(LookasideError, ValueError):
    """An argument is invalid, or the configuration cannot be read."""


class EncodeError(LookasideError, ValueError):
    """The value cannot be stored: JSON has no form for it, or pickle refuses it."""


class DecodeError(LookasideError, ValueError):
    """The stored value cannot be read: it is malformed, or of a format that this client does not read."""


class CacheUnavailableError(LookasideError, ConnectionError):
    """No server replied. Whether a set or delete was executed is unknown."""


class DeadlineExceededError(LookasideError, TimeoutError):
    """The call's timeout has passed. Whether a set or delete was executed is unknown."""


class RefusedError(LookasideError):
    """The server replied with an error: the value is too large, say."""


class NotStoredError(RefusedError):
    """A router that takes leases for plain clients did not store the value, which may be older than a delete."""


class MarkerNotSetError(LookasideError):
    """The remote marker of a key could not be set. Nothing is to be written to the database."""


class ClosedError(LookasideError):
    """The client was closed."""
