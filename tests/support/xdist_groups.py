"""Distribute tests over processes. One process runs all tests of a group: Spark, browser, attacks on a server, wheel.

The groups start first, then each slow test separately, then the other tests in batches of one module: so all processes end at about the same time. A worker process has collected its tests and can read their fixtures; the scheduling process has only their names. (The groups of pytest-xdist are made for this, but pytest 9.2 leaves them without effect: pytest-xdist, issue 1386.)
"""

import json
import os
import tempfile
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_GROUPS = ("spark", "browser", "package", "overload")  # in the order in which they start
_GROUP_BY_FIXTURE = {
    "spark": "spark",
    "spark_cluster": "spark",
    "chromium": "browser",
    "attacked_server": "overload",
    "wheel": "package",  # three environments are installed once
}
_BATCH_SIZE = 8  # the scheduler takes longer for each assignment than many tests do
_grouped: dict[str, str] = {}  # group or batch by test id
_groups_file = pytest.StashKey[Path]()


class GroupScheduler(LoadScopeScheduling):
    """Assign groups and batches in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Any, groups: Path) -> None:
        config.option.loadscopereorder = False  # `arrange` sorts the tests
        super().__init__(config, log)
        self._groups_path = groups

    @cached_property
    def _groups(self) -> dict[str, str]:
        groups: dict[str, str] = json.loads(self._groups_path.read_bytes())
        return groups

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        assigned = self.assigned_work[node]  # the scheduler counts the tests in it after each test
        group = self._split_scope(self.registered_collections[node][item_index])
        if all(assigned[group].values()):
            del assigned[group]

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)


def groups_file(config: pytest.Config) -> Path:
    """Return the file with the groups of tests that the scheduler reads."""
    if _groups_file not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="penstock-groups-")
        config.add_cleanup(folder.cleanup)
        config.stash[_groups_file] = Path(folder.name) / "groups.json"
    return config.stash[_groups_file]


def arrange(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Record the group of each test and sort the tests: groups, slow tests, batches.

    One worker writes the groups for the scheduler, before the scheduler has all the names.
    """
    _grouped.update({item.nodeid: group for item in items if (group := _group(item))})
    worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker_input is None:
        return
    sizes = Counter[str]()
    for item in items:
        if item.nodeid not in _grouped and not item.get_closest_marker("slow"):
            module = item.nodeid.partition("::")[0]
            _grouped[item.nodeid] = f"{module} {sizes[module] // _BATCH_SIZE}"
            sizes[module] += 1
    ranks = {group: rank for rank, group in enumerate(_GROUPS)}
    items.sort(key=lambda item: ranks.get(_grouped.get(item.nodeid, ""), len(ranks) + (item.nodeid in _grouped)))
    if worker_input["workerid"] == "gw0":
        Path(worker_input["groups"]).write_text(json.dumps(_grouped))


def assert_grouped() -> None:
    """Assert that the current test is in the Spark group: otherwise a second session could start."""
    test_id = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    assert _grouped.get(test_id) == "spark", (
        f"{test_id} uses Spark, but tests/support/xdist_groups.py does not group it: use the fixture spark"
    )


def _group(item: pytest.Item) -> str | None:
    """Return the group of a test by its fixtures, or by a parameter that names an engine."""
    for name in getattr(item, "fixturenames", ()):
        if name in _GROUP_BY_FIXTURE:
            return _GROUP_BY_FIXTURE[name]
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "spark" if any(isinstance(value, str) and "spark" in value.lower() for value in values) else None
