"""Mark tests by what they start, so that `-m` can leave it out: spark, cluster, postgres, browser, container, slow."""

from collections.abc import Iterator

import pytest

_BY_FIXTURE = {"spark": "spark", "spark_cluster": "cluster", "postgres_url": "postgres", "chromium": "browser"}
_BY_PARAMETER = {"spark": "spark", "postgresql": "postgres"}
# Modules whose tests start servers or many processes, or kill them at every step. `make quick` leaves them out.
_SLOW_MODULES = {
    "cli/test_pipeline", "cli/test_query", "cli/test_worker",
    "deployment/test_deployment", "deployment/test_package",
    "docs/test_docs_run",
    "engines/test_merge_random", "engines/test_selector",
    "faults/test_commit_faults", "faults/test_directory_swap", "faults/test_overload", "faults/test_spark_loss",
    "flight/test_atomicity", "flight/test_backpressure", "flight/test_examples", "flight/test_isolation", "flight/test_serve",
    "rest/test_openapi", "rest/test_operations", "rest/test_query_results", "rest/test_runs", "rest/test_serve",
    "service/test_merge_interference", "service/test_merge_memory", "service/test_run_workers", "service/test_sandbox",
    "ui/test_reconnects",
}  # fmt: skip


def mark(items: list[pytest.Item]) -> None:
    """Add the markers of each test by its fixtures, its parameters and its module."""
    for item in items:
        for name in _markers(item):
            item.add_marker(name)


def _markers(item: pytest.Item) -> Iterator[str]:
    yield from {_BY_FIXTURE[name] for name in getattr(item, "fixturenames", ()) if name in _BY_FIXTURE}
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec else ():
        for word, name in _BY_PARAMETER.items():
            if isinstance(value, str) and word in value.lower():
                yield name
    module = f"{item.path.parent.name}/{item.path.stem}"
    if module == "deployment/test_container":
        yield "container"
    if module in _SLOW_MODULES:
        yield "slow"
