"""Pipelines and their runs: written, checked, started and watched."""

from penstock.ui.pipelines import detail as one
from penstock.ui.pipelines import list as overview
from penstock.ui.pipelines import run_detail as run
from penstock.ui.pipelines import run_list as runs
from penstock.ui.pipelines import new

__all__ = ["new", "one", "overview", "run", "runs"]
