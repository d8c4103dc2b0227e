"""Run the command line in a test."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main


@dataclass(frozen=True)
class CliResult:
    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class CliRunner:
    def __init__(self, folder: Path, capture: pytest.CaptureFixture[bytes]) -> None:
        self.folder, self._capture = folder, capture
        self.env = {**os.environ, "PENSTOCK_WORKSPACE": str(folder / "lake"), "PENSTOCK_DURABLE": "no"}

    def __call__(self, *args: object, code: int = 0) -> CliResult:
        """Run a command in this process."""
        self._capture.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(arg) for arg in args])
        out, err = self._capture.readouterr()
        result = CliResult(int(end.value.code or 0), out, err.decode())
        assert result.code == code, result
        assert "bug in Penstock" not in result.err
        assert "Traceback" not in result.err
        return result

    def process(self, *args: object, before: str = "", **options: Any) -> subprocess.Popen[bytes]:
        """Start a command in a separate process, after a line of Python."""
        script = (
            f"from penstock.cli import main; {before}; main()" if before else "from penstock.cli import main; main()"
        )
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.env, **options}
        return subprocess.Popen([sys.executable, "-c", script, *map(str, args)], cwd=self.folder, **options)

    def run_subprocess(self, *args: object, **options: Any) -> CliResult:
        process = self.process(*args, **options)
        out, err = process.communicate(timeout=60)
        return CliResult(process.returncode, out or b"", (err or b"").decode())

    @contextmanager
    def assert_unchanged(self) -> Iterator[None]:
        """Assert that the datasets and the files are unchanged."""
        before = self._state()
        yield
        assert self._state() == before

    def _state(self) -> tuple[Any, dict[str, int]]:
        return self("dataset", "list", "--json").json, {
            str(path.relative_to(self.folder)): path.lstat().st_size
            for path in self.folder.rglob("*")
            if not path.is_dir() and not path.name.startswith("catalog.db")
        }
