"""A workspace that several processes of a test can open, and kill."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import penstock
from penstock import config
from penstock.lake import Lake


@dataclass(frozen=True)
class Place:
    folder: str
    url: str | None

    @classmethod
    def make(cls, folder: Path, url: str | None) -> "Place":
        place = cls(str(folder), url)
        penstock.open(folder, create=True, settings=place.settings()).close()
        return place

    def settings(self) -> config.Settings:
        # Nothing here survives a power cut, and nothing here needs to: what is tested is killed processes.
        return config.settings({}, workspace=Path(self.folder), database_url=self.url, durable=False)

    def open(self) -> Lake:
        return penstock.open(settings=self.settings())

    def spawn(self, script: str, *args: Any) -> subprocess.Popen[str]:
        """Run a function of the module `actors` in a process of its own."""
        task = json.dumps([asdict(self), script, args])
        return subprocess.Popen(
            [sys.executable, "-c", "import actors; actors.main()", task],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def race(self, script: str, argss: Sequence[Sequence[Any]]) -> list[Any]:
        """Several processes that start together; their answers, in order."""
        processes = [self.spawn(script, *args) for args in argss]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()
        go = Path(self.folder) / "go"
        go.touch()
        try:
            return [answer(process) for process in processes]
        finally:
            go.unlink()


def answer(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])
