"""A test workspace that several processes can open."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import text

import penstock
from penstock import config
from penstock.core.dataset.edit_policy import EditMode
from penstock.lake import Lake
from support.process_pool import ChildProcess


@dataclass(frozen=True)
class WorkspaceFixture:
    folder: str
    url: str | None
    edit_mode: str = "auto"

    @classmethod
    def make(cls, folder: Path, url: str | None, edit_mode: str = "auto") -> "WorkspaceFixture":
        location = cls(str(folder), url, edit_mode)
        if url is None:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "catalog.db").open("xb") as file:
                file.write(_catalog())
        with penstock.open(folder, create=True, settings=location.settings()) as lake:
            if url is not None:  # tests share the server: remove the queued runs of earlier tests
                with lake._workspace.db.connect_without_tenant() as connection, connection.begin():
                    connection.execute(text("DELETE FROM run_queue"))
        return location

    def settings(self) -> config.Settings:
        # Files are not flushed: tests kill processes, not the machine.
        return config.load_settings(
            {}, workspace=Path(self.folder), database_url=self.url, durable=False, edit_mode=EditMode(self.edit_mode)
        )

    def open(self) -> Lake:
        return penstock.open(settings=self.settings())

    def spawn(self, script: str, *args: Any) -> ChildProcess:
        """Run a function of the module `support.process_scripts` in a separate process."""
        return ChildProcess("support.process_scripts", json.dumps([asdict(self), script, args]))

    def race(self, script: str, argument_lists: Sequence[Sequence[Any]]) -> list[Any]:
        """Start several processes together, and return their results in order."""
        processes = [self.spawn(script, *args) for args in argument_lists]
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=60)
        go = Path(self.folder) / "go"
        go.touch()
        try:
            return [result_of(process) for process in processes]
        finally:
            go.unlink()


@cache
def _catalog() -> bytes:
    """Return the bytes of an empty catalog. Creating a catalog takes longer than most tests."""
    with tempfile.TemporaryDirectory(prefix="penstock-empty-") as folder:
        penstock.open(create=True, settings=WorkspaceFixture(folder, None).settings()).close()
        return Path(folder, "catalog.db").read_bytes()


def result_of(process: ChildProcess) -> Any:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])
