"""How several processes share the tests: one has all that need Spark, and begins with them; the others are dealt singly.

A process that is given tests has collected them and knows what they need; the one that deals them out knows only their
names. (The groups of pytest-xdist are made for this, but pytest 9.2 leaves them without effect: pytest-xdist, issue 1386.)
"""

import json
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_SPARK = {"spark", "spark_cluster"}  # the fixtures
_known: set[str] = set()  # the tests that need them
_letter = pytest.StashKey[Path]()


class Dealer(LoadScopeScheduling):
    """Deals out the largest share first."""

    def __init__(self, config: pytest.Config, log: Any, told: Path) -> None:
        super().__init__(config, log)
        self._told = told

    @cached_property
    def _of_spark(self) -> set[str]:
        return set(json.loads(self._told.read_bytes()))

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid in self._of_spark else nodeid


def letter(config: pytest.Config) -> Path:
    """The file in which the dealer is told the names of the tests that need Spark."""
    if _letter not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="penstock-shares-")
        config.add_cleanup(folder.cleanup)
        config.stash[_letter] = Path(folder.name) / "spark.json"
    return config.stash[_letter]


def note(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember what needs Spark; one process tells the dealer, before it has all the names."""
    _known.update(item.nodeid for item in items if _needs_spark(item))
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if given.get("workerid") == "gw0":
        Path(given["shares"]).write_text(json.dumps(sorted(_known)))


def assert_known() -> None:
    """A test that Spark is not expected of would start a second one, sooner or later."""
    now = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    assert now in _known, f"how could tests/shares.py see that {now} needs Spark?"


def _needs_spark(item: pytest.Item) -> bool:
    """By a fixture, or by a parameter with which a fixture or the test asks for one."""
    if not _SPARK.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(value, str) and "spark" in value.lower() for value in chosen)
