"""Pages of result schemas."""

from penstock.ui.schemas import new  # isort: skip  # first: `/schemas/{id}` would match its path, too
from penstock.ui.schemas import detail, edit, list

__all__ = ["detail", "edit", "list", "new"]
