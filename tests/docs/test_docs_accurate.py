"""Generated pages, links and indexes of the documentation are current. test_docs_run.py runs the code blocks."""

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
    error_classes = defaultdict(set)
    for entry in docs.list_errors():
        error_classes[entry.reason].add(entry.kind)
    assert {reason: error_class for reason, error_class in error_classes.items() if len(error_class) > 1} == {}
    assert all(re.fullmatch(r"[a-z][a-z_]*", reason) for reason in error_classes)
    assert {entry.kind for entry in docs.list_errors()} == {error_class.__name__ for error_class in errors.KINDS}


def test_errors_docstring_lists_every_error_class() -> None:
    assert set(re.findall(r"[├└]── (\w+)", errors.__doc__ or "")) == {
        error_class.__name__ for error_class in errors.KINDS
    }


def prose(page: str) -> str:
    return FENCED.sub("", text(page))


def anchors(page: str) -> set[str]:
    """Return the anchors that GitHub creates for the headings of a page."""
    counts, anchors_ = Counter[str](), set()
    for heading in re.findall(r"^#+ (.*)", prose(page), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchors_.add(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return anchors_


@pytest.mark.parametrize("page", PAGES)
def test_page_links_resolve(page: str) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        location, _, anchor = link.partition("#")
        if location.startswith("http"):
            continue
        target = (ROOT / page).parent / location if location else ROOT / page
        existing = target.exists() and (not anchor or anchor in anchors(str(target.resolve().relative_to(ROOT))))
        broken += [] if existing else [link]
    assert broken == []


def test_readme_links_every_page() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in LINK.findall(prose("README.md"))}
    below = {page for page in PAGES if page.startswith("docs/decisions/0")}  # the index of the decisions links them
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
