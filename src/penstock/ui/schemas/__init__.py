"""Schemas: found, looked at, written, tried and led through their states."""

from penstock.ui.schemas import detail as one
from penstock.ui.schemas import list as overview
from penstock.ui.schemas import edit, new

__all__ = ["edit", "new", "one", "overview"]
