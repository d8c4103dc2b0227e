"""`make screenshots` forgets no page."""

import re
from pathlib import Path
from uuid import uuid4

from penstock import ui
from tools.screenshots import KEPT, shots

SOURCES = Path(ui.__file__).parent
IDS = {name: str(uuid4()) for name in ("schema", "draft", "query", "pipeline", "long", "run", "failed", "token")}


def test_every_page_has_its_picture() -> None:
    pages = {path for file in SOURCES.rglob("*.py") for path in re.findall(r'@page\(\s*"([^"]+)"', file.read_text())}
    taken = {shot.path for shot in shots(IDS)}
    assert len(pages) > 10
    assert [path for path in pages if "{" not in path and path not in taken] == []
    others = taken - pages
    assert [path for path in pages if "{" in path and not any(re.fullmatch(_any(path), each) for each in others)] == []


def test_what_the_readme_shows_is_taken() -> None:
    assert KEPT.keys() <= {shot.name for shot in shots(IDS)}


def _any(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "[^/]+", path)
