"""Pages of registered queries."""

from penstock.ui.queries import new  # isort: skip  # first: `/queries/{id}` would match its path, too
from penstock.ui.queries import detail, edit, list

__all__ = ["detail", "edit", "list", "new"]
