"""`make screenshots` covers every page."""

import re
from pathlib import Path
from uuid import uuid4

from penstock import ui
from tools.screenshots import README_IMAGES, shots

SOURCES = Path(ui.__file__).parent
IDS = {name: str(uuid4()) for name in ("schema", "draft", "query", "pipeline", "long", "run", "failed", "token")}


def test_screenshots_cover_every_page() -> None:
    pages = {path for file in SOURCES.rglob("*.py") for path in re.findall(r'@page\(\s*"([^"]+)"', file.read_text())}
    taken = {shot.path for shot in shots(IDS)}
    assert len(pages) > 10
    assert [path for path in pages if "{" not in path and path not in taken] == []
    others = taken - pages
    assert [
        path for path in pages if "{" in path and not any(re.fullmatch(_pattern(path), other) for other in others)
    ] == []


def test_screenshots_include_readme_images() -> None:
    assert README_IMAGES.keys() <= {shot.name for shot in shots(IDS)}


def _pattern(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "[^/]+", path)
