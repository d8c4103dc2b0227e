"""Distribute tests over processes: one runs all that need Spark, one all that need a browser, one all attacks on a server, one all tests of the wheel; others are assigned singly.

A worker process has collected its tests and can read their fixtures; the scheduling process has only their names. (The groups of pytest-xdist are made for this, but pytest 9.2 leaves them without effect: pytest-xdist, issue 1386.)
"""

import json
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_SHARES = {
    "spark": "spark",
    "spark_cluster": "spark",
    "chromium": "browser",
    "attacked_server": "overload",
    "wheel": "package",  # three environments are installed once
}  # by fixture
_grouped: dict[str, str] = {}  # group by test id
_groups_file = pytest.StashKey[Path]()


class GroupScheduler(LoadScopeScheduling):
    """Assign the largest group first."""

    def __init__(self, config: pytest.Config, log: Any, response: Path) -> None:
        super().__init__(config, log)
        self._reported = response

    @cached_property
    def _shares(self) -> dict[str, str]:
        shares: dict[str, str] = json.loads(self._reported.read_bytes())
        return shares

    def _split_scope(self, nodeid: str) -> str:
        return self._shares.get(nodeid, nodeid)


def groups_file(config: pytest.Config) -> Path:
    """Return the file with the groups of tests that the scheduler reads."""
    if _groups_file not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="penstock-shares-")
        config.add_cleanup(folder.cleanup)
        config.stash[_groups_file] = Path(folder.name) / "shares.json"
    return config.stash[_groups_file]


def note(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Record the groups of tests; one worker writes them for the scheduler, before it has all the names."""
    _grouped.update({item.nodeid: share for item in items if (share := _share(item))})
    configured: dict[str, Any] = getattr(config, "workerinput", {})
    if configured.get("workerid") == "gw0":
        Path(configured["shares"]).write_text(json.dumps(_grouped))


def assert_grouped() -> None:
    """Assert that the current test is in the Spark group: otherwise a second session could start."""
    now = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    assert _grouped.get(now) == "spark", (
        f"{now} uses Spark, but tests/support/xdist_groups.py does not group it: use the fixture spark"
    )


def _share(item: pytest.Item) -> str | None:
    """Return the group of a test by its fixtures, or by a parameter that names an engine."""
    for name in getattr(item, "fixturenames", ()):
        if name in _SHARES:
            return _SHARES[name]
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "spark" if any(isinstance(value, str) and "spark" in value.lower() for value in chosen) else None
