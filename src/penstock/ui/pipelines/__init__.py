"""Pipelines and their runs: written, checked, started and watched."""

from penstock.ui.pipelines import new, one, overview, run, runs

__all__ = ["new", "one", "overview", "run", "runs"]
