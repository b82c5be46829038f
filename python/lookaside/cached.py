"""The key of a function's result, from a template and the call's arguments: `cached("user:{id}")`."""

import inspect
from collections.abc import Callable
from typing import Any

from .errors import InexpressibleValueError
from .key_templates import Template, write_value


class KeyTemplate:
    """A key with the names of a function's parameters in braces. Their values are written as row rules write them."""

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self._template = Template.parse(template)
        self._signature = inspect.signature(function)
        unknown = [name for name in self._template.columns if name not in self._signature.parameters]
        if unknown:
            names = ", ".join(self._signature.parameters)
            name = function.__qualname__
            raise ValueError(f"the key {template!r} does not fit {name}({names}): there is no parameter {unknown[0]!r}")

    def add_attributes(self, read: Callable[..., Any], delete: Callable[[str], Any]) -> Any:
        """The function that reads, with `key` and `delete` of its calls."""
        cached: Any = read
        cached.key = self.key
        cached.delete = lambda *args, **kwargs: delete(self.key(*args, **kwargs))
        return cached

    def key(self, *args: Any, **kwargs: Any) -> str:
        """The key of a call with these arguments. Raises `InexpressibleValueError` for `None` and for floats."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        written = {name: write_value(bound.arguments[name]) for name in self._template.columns}
        key = self._template.key(written)
        if key is None:
            missing = next(name for name, value in written.items() if value is None)
            raise InexpressibleValueError(f"{missing} is None, which has no form in the key {self._template.text!r}")
        return key
