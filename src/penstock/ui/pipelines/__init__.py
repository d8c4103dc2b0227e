"""Pipelines and their runs: written, checked, started and watched."""

from penstock.ui.pipelines import one, overview, run, runs

__all__ = ["one", "overview", "run", "runs"]
