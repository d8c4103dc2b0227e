"""Rows as JSON text, for entry points."""

from penstock.storage.row_json import NULL, rows_to_json

__all__ = ["NULL", "rows_to_json"]
