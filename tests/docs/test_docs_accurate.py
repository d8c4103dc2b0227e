"""The documentation is true: what it lists is all there is, and where it leads to is there. test_pages.py runs what it shows."""

import re
from collections import Counter, defaultdict

import pytest

from penstock import errors
from support.doc_pages import PAGES, ROOT, blocks, text
from tools import docs

FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_pages_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == docs.PAGES[name](), "run `make docs`"


def test_reasons_belong_to_one_error_class() -> None:
    kinds = defaultdict(set)
    for entry in docs.list_errors():
        kinds[entry.reason].add(entry.kind)
    assert {reason: kind for reason, kind in kinds.items() if len(kind) > 1} == {}
    assert all(re.fullmatch(r"[a-z][a-z_]*", reason) for reason in kinds)
    assert {entry.kind for entry in docs.list_errors()} == {kind.__name__ for kind in errors.KINDS}


def test_errors_docstring_lists_every_error_class() -> None:
    assert set(re.findall(r"[├└]── (\w+)", errors.__doc__ or "")) == {kind.__name__ for kind in errors.KINDS}


def prose(page: str) -> str:
    return FENCED.sub("", text(page))


def anchors(page: str) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    seen, found = Counter[str](), set()
    for heading in re.findall(r"^#+ (.*)", prose(page), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


@pytest.mark.parametrize("page", PAGES)
def test_page_links_resolve(page: str) -> None:
    lost = []
    for link in LINK.findall(prose(page)):
        location, _, anchor = link.partition("#")
        if location.startswith("http"):
            continue
        target = (ROOT / page).parent / location if location else ROOT / page
        existing = target.exists() and (not anchor or anchor in anchors(str(target.resolve().relative_to(ROOT))))
        lost += [] if existing else [link]
    assert lost == []


def test_readme_links_every_page() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in LINK.findall(prose("README.md"))}
    below = {page for page in PAGES if page.startswith("docs/decisions/0")}  # by their index
    assert {page for page in PAGES if (ROOT / page).resolve() not in linked} == below | {"README.md"}


def test_readme_shows_make_demo_and_make_test_first() -> None:
    assert re.findall(r"^make \w+", next(blocks("README.md")).text, re.MULTILINE) == ["make demo", "make test"]


def test_decisions_index_lists_every_decision() -> None:
    pages = [page for page in PAGES if page.startswith("docs/decisions/0")]
    titles = [text(page).partition("\n")[0].removeprefix("# ") for page in pages]
    names = [page.rpartition("/")[2] for page in pages]
    assert [title[:5] for title in titles] == [f"{name[:4]} " for name in names]
    assert re.findall(r"^- \[(.*?)\]\((.*?)\): ", text("docs/decisions/README.md"), re.MULTILINE) == list(
        zip(titles, names, strict=True)
    )
