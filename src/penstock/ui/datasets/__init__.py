"""Datasets: found, looked at in any version, and added to."""

from penstock.ui.datasets import detail as one
from penstock.ui.datasets import list as overview

__all__ = ["one", "overview"]
