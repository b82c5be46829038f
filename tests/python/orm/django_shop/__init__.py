"""A Django application with keys."""
