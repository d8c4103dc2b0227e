"""Check that the file store can be written, and remember the outcome of a bucket for some seconds."""

import threading
import time

from penstock.errors import PenstockError
from penstock.storage.file_store import FileStore

PROBE_SECONDS = 5.0  # bounds the requests, and the price, of readiness checks


class StoreProbe:
    """Share one probe of a bucket among the readiness checks of some seconds. A local store is checked every time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._valid_until = 0.0
        self._error: PenstockError | None = None

    def check(self, store: FileStore) -> None:
        """Raise the error of the probe, if it fails."""
        if not store.is_remote:
            store.probe()
            return
        with self._lock:
            if time.monotonic() >= self._valid_until:
                self._error = None
                try:
                    store.probe()
                except PenstockError as error:
                    self._error = error
                self._valid_until = time.monotonic() + PROBE_SECONDS
            if self._error:
                raise self._error
