"""Queries: written, tried, judged by their schema, registered and asked."""

from penstock.ui.queries import edit, new, one, overview

__all__ = ["edit", "new", "one", "overview"]
