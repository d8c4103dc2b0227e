"""Queries: written, tried, judged by their schema, registered and asked."""

from penstock.ui.queries import one, overview

__all__ = ["one", "overview"]
