"""Schemas: found, looked at, written, tried and led through their states."""

from penstock.ui.schemas import edit, new, one, overview

__all__ = ["edit", "new", "one", "overview"]
