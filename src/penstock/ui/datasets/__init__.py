"""Datasets: found, looked at in any version, and added to."""

from penstock.ui.datasets import one, overview

__all__ = ["one", "overview"]
