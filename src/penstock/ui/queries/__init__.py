"""Queries: written, tried, judged by their schema, registered and asked."""

from penstock.ui.queries import detail as one
from penstock.ui.queries import list as overview
from penstock.ui.queries import edit, new

__all__ = ["edit", "new", "one", "overview"]
