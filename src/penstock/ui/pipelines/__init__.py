"""Pages of pipelines and their runs."""

from penstock.ui.pipelines import new  # isort: skip  # first: `/pipelines/{id}` would match its path, too
from penstock.ui.pipelines import detail, list, run_detail, run_list

__all__ = ["detail", "list", "new", "run_detail", "run_list"]
