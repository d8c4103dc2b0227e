"""How several processes share the tests: one has all that need Spark, one all that need a browser; others are dealt singly.

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

_SHARES = {"spark": "spark", "spark_cluster": "spark", "chromium": "browser"}  # of those who need a fixture
_known: dict[str, str] = {}  # the share of a test that is in one
_letter = pytest.StashKey[Path]()


class Dealer(LoadScopeScheduling):
    """Deals out the largest share first."""

    def __init__(self, config: pytest.Config, log: Any, told: Path) -> None:
        super().__init__(config, log)
        self._told = told

    @cached_property
    def _shares(self) -> dict[str, str]:
        shares: dict[str, str] = json.loads(self._told.read_bytes())
        return shares

    def _split_scope(self, nodeid: str) -> str:
        return self._shares.get(nodeid, nodeid)


def letter(config: pytest.Config) -> Path:
    """The file in which the dealer is told which tests stay together."""
    if _letter not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="penstock-shares-")
        config.add_cleanup(folder.cleanup)
        config.stash[_letter] = Path(folder.name) / "shares.json"
    return config.stash[_letter]


def note(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember what stays together; one process tells the dealer, before it has all the names."""
    _known.update({item.nodeid: share for item in items if (share := _share(item))})
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if given.get("workerid") == "gw0":
        Path(given["shares"]).write_text(json.dumps(_known))


def assert_known() -> None:
    """A test that Spark is not expected of would start a second one, sooner or later."""
    now = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    assert _known.get(now) == "spark", f"how could tests/shares.py see that {now} needs Spark?"


def _share(item: pytest.Item) -> str | None:
    """By a fixture, or by a parameter with which a fixture or the test asks for one."""
    for name in getattr(item, "fixturenames", ()):
        if name in _SHARES:
            return _SHARES[name]
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "spark" if any(isinstance(value, str) and "spark" in value.lower() for value in chosen) else None
