"""The key of a function's result, from a template and the call's arguments: `cached("user:{id}")`."""

import inspect
from collections.abc import Callable
from typing import Any


class KeyTemplate:
    """A key with the names of a function's parameters in braces, as `str.format` has them."""

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self.template = template
        self.signature = inspect.signature(function)
        try:
            self.format_names({name: _AnyValue() for name in self.signature.parameters})
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            names = ", ".join(self.signature.parameters)
            message = f"the key {template!r} does not fit {function.__qualname__}({names}): {error}"
            raise ValueError(message) from error

    def format_names(self, values: dict[str, Any]) -> str:
        """The key with these values."""
        return self.template.format_map(values)

    def key(self, *args: Any, **kwargs: Any) -> str:
        """The key of a call with these arguments."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.format_names(bound.arguments)


class _AnyValue:
    """Stands for an argument while a template is checked."""

    def __getattr__(self, name: str) -> "_AnyValue":
        return self

    def __getitem__(self, name: object) -> "_AnyValue":
        return self

    def __format__(self, spec: str) -> str:
        return ""
