"""Schemas: found, looked at, written, tried and led through their states."""

from penstock.ui.schemas import editor, one, overview

__all__ = ["editor", "one", "overview"]
