"""Pages of datasets."""

from penstock.ui.datasets import detail, list

__all__ = ["detail", "list"]
