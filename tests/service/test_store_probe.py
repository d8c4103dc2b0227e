"""Readiness checks share one probe of a bucket for some seconds."""

import pytest

from penstock.errors import Unavailable
from penstock.service import store_probe
from penstock.service.store_probe import StoreProbe


class _Store:
    def __init__(self, *, is_remote: bool) -> None:
        self.is_remote, self.probes, self.error = is_remote, 0, False

    def probe(self) -> None:
        self.probes += 1
        if self.error:
            raise Unavailable("store_refused.denied")


def test_check_probes_a_bucket_once_in_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, store, probe = 100.0, _Store(is_remote=True), StoreProbe()
    monkeypatch.setattr(store_probe.time, "monotonic", lambda: now)
    for _ in range(3):
        probe.check(store)  # type: ignore[arg-type]
    assert store.probes == 1
    store.error, now = True, 106.0
    for _ in range(3):
        with pytest.raises(Unavailable):
            probe.check(store)  # type: ignore[arg-type]
    assert store.probes == 2


def test_check_probes_a_folder_every_time() -> None:
    store, probe = _Store(is_remote=False), StoreProbe()
    for _ in range(3):
        probe.check(store)  # type: ignore[arg-type]
    assert store.probes == 3
