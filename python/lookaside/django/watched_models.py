"""Which keys the rows of a model make stale: from the models' `Lookaside` classes and the settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from django.apps.registry import Apps
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, Model, QuerySet

from ..key_naming import WrittenRow, write_row
from ..key_templates import Template
from .field_values import check_field, field_writer, is_identifier


@dataclass(frozen=True)
class ModelKeys:
    """The templates of a model."""

    model: type[Model]
    templates: tuple[Template, ...]
    # By their names in the templates.
    fields: dict[str, Field]

    @property
    def owner(self) -> str:
        """Its name in messages."""
        return str(self.model._meta.label)

    @cached_property
    def is_identified(self) -> bool:
        """Whether keys have no fields but the primary key, of which the program knows the stored form."""
        pk = self.model._meta.pk
        return is_identifier(pk) and all(field is pk for field in self.fields.values())

    def row_of_object(self, instance: Model, connection: BaseDatabaseWrapper) -> WrittenRow | None:
        """The row that an INSERT of an object writes; `None` if only the database knows it."""
        values = {}
        for name, field in self.fields.items():
            value = getattr(instance, field.attname)
            is_chosen_by_database = hasattr(value, "resolve_expression") or (field.primary_key and value is None)
            if is_chosen_by_database or not is_identifier(field):
                return None
            values[name] = value
        writers = {name: field_writer(field, connection) for name, field in self.fields.items()}
        return write_row(writers, values.values(), self.owner)

    def rows(
        self, pks: Iterable, connection: BaseDatabaseWrapper, *, locked: bool, no_key: bool = False
    ) -> dict[object, WrittenRow]:
        """The rows with these primary keys, read from the database unless the primary key is all that keys have."""
        writers = {name: field_writer(field, connection) for name, field in self.fields.items()}
        if self.is_identified:
            return {pk: write_row(writers, [pk] * len(writers), self.owner) for pk in pks}
        found = QuerySet(self.model, using=connection.alias).filter(pk__in=list(pks)).order_by("pk")
        if locked:
            # SQLite ignores it; `lock_for_writing` has the same effect there.
            found = found.select_for_update(no_key=no_key)
        names = [field.attname for field in self.fields.values()]
        return {pk: write_row(writers, values, self.owner) for pk, *values in found.values_list("pk", *names)}


class WatchedModels:
    """The models that have keys."""

    def __init__(self, apps: Apps, declared: dict[str, list[str]]) -> None:
        """`declared` has the keys of models by their labels, for models of other packages and of many-to-many tables.

        `ImproperlyConfigured` names the model, and the template or field that is wrong.
        """
        found: dict[type[Model], ModelKeys] = {}
        models = apps.get_models(include_auto_created=True)
        for model in models:
            texts = getattr(getattr(model, "Lookaside", None), "keys", None)
            if texts is not None and not model._meta.proxy:
                found[model] = model_keys(model, texts)
        labels = {model._meta.label_lower: model for model in models}
        for label, texts in declared.items():
            model = labels.get(label.lower())
            if model is None:
                raise ImproperlyConfigured(f"LOOKASIDE['KEYS']: there is no model {label!r}")
            if model in found:
                raise ImproperlyConfigured(f"LOOKASIDE['KEYS']: {label} has a class Lookaside with keys already")
            found[model] = model_keys(model, texts)
        # A row of a parent's table is a part of the child's, too.
        self._of_table = {
            model: [keys for keys in found.values() if issubclass(keys.model, model)]
            for model in models
            if not model._meta.proxy
        }

    def of_table(self, model: type[Model]) -> list[ModelKeys]:
        """The keys that a change of the table of a model makes stale."""
        return self._of_table.get(model._meta.concrete_model, [])


def model_keys(model: type[Model], texts: list[str]) -> ModelKeys:
    """Checks the templates of a model."""
    owner = model._meta.label
    if isinstance(texts, str):
        raise ImproperlyConfigured(f"{owner}: the keys are the text {texts!r}; expected a list of templates")
    try:
        templates = tuple(map(Template.parse, texts))
        fields = {name: field_named(model, name) for template in templates for name in template.columns}
    except ValueError as why:
        raise ImproperlyConfigured(f"{owner}: {why}") from None
    return ModelKeys(model, templates, fields)


def field_named(model: type[Model], name: str) -> Field:
    """The field, by its name, the name of its column's attribute (`author_id`), or `pk`."""
    try:
        field = model._meta.pk if name == "pk" else model._meta.get_field(name)
    except FieldDoesNotExist:
        field = None
    if not isinstance(field, Field) or not field.concrete or field.many_to_many:
        known = ", ".join(sorted(field.attname for field in model._meta.concrete_fields))
        raise ValueError(f"{name!r} is no field with a column; fields are {known}")
    check_field(field)
    return field
