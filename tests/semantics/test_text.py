"""JSON and YAML become plain values in one way only, and what cannot is refused where it stands."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.payload import documents as text
from penstock.core.payload.documents import Document, Format
from penstock.errors import Invalid

WORDS = {
    "yes": "yes",
    "No": "No",
    "on": "on",
    "True": "True",
    "2026-01-31": "2026-01-31",
    "2026-01-31T10:00:00Z": "2026-01-31T10:00:00Z",
    "1:30": "1:30",
    "0x1f": "0x1f",
    "007": "007",
    "+1": "+1",
    "1_000": "1_000",
    ".inf": ".inf",
    ".NaN": ".NaN",
    "NaN": "NaN",
    "=": "=",
    "amount > 10000": "amount > 10000",
    "budget_type = 'original'": "budget_type = 'original'",
    "true": True,
    "false": False,
    "null": None,
    "~": None,
    "": None,
    "-12": -12,
    "1.50": 1.5,
    "2e3": 2000.0,
    "'1'": "1",
    '"true"': "true",
    "|\n  two\n  lines": "two\nlines",
}


@pytest.mark.parametrize("written", WORDS)
def test_a_bare_word_of_yaml_is_what_it_is_in_json_or_else_text(written: str) -> None:
    value = text.from_yaml(f"x: {written}".encode(), "it").value["x"]
    assert (value, type(value)) == (WORDS[written], type(WORDS[written]))


def test_names_are_always_text() -> None:
    assert text.from_yaml(b"1: a\nnull: b\n2026-01-31: c", "it").value == {"1": "a", "null": "b", "2026-01-31": "c"}


def test_an_anchor_stands_for_its_value() -> None:
    assert text.from_yaml(b"a: &x {b: [1]}\nc: [*x, *x]", "it").value == {"a": {"b": [1]}, "c": [{"b": [1]}] * 2}


def bomb(width: int, layers: int) -> str:
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, layers)]
    return "\n".join(lines)


BAD_YAML = {  # what is wrong, and where
    "a: 1\nb: 2\na: 3": ("member 'a' is there twice", 3, 1),
    "{a: 1, a: 1}": ("member 'a' is there twice", 1, 8),
    "a:\n  <<: {b: 1}": ("members cannot be merged", 2, 3),
    "a: !!int 5": ("the tag 'tag:yaml.org,2002:int'", 1, 4),
    "a: !!python/object/apply:os.system [ls]": ("the tag", 1, 4),
    "a: ! x": ("the tag", 1, 4),
    "? [1, 2]\n: x": ("must be text", 1, 3),
    "a: &x b\n*x : c": ("must be text", 2, 1),
    "a: *nobody": ("the alias 'nobody' stands for nothing", 1, 4),
    "a: &x [*x]": ("the alias 'x' stands for nothing", 1, 8),
    "a: 1\n---\nb: 2": ("a second document", 2, 1),
    "a:\n\tb: 1": ("cannot start any token", 2, 1),
    "a: 'open": ("unexpected end of stream", 1, 9),
    "a: 1e999": ("1e999 is too large a number", 1, 4),
    "[" * 500: ("more than 100 lists", 1, 101),
    "- " * 500: ("more than 100 lists", 1, 201),
    bomb(10, 9): ("more than 200,000 values", 6, 10),
    f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 300)}]": ("more than 200,000 values", 2, 797),
    bomb(1, 200): ("more than 100 lists", 100, 12),
}


@pytest.mark.parametrize("written", BAD_YAML, ids=lambda written: ascii(written)[:40])
def test_what_is_wrong_with_yaml_is_told_with_its_line_and_column(written: str) -> None:
    problem, line, column = BAD_YAML[written]
    with pytest.raises(Invalid, match="it is not YAML: ") as refusal:
        text.from_yaml(written.encode(), "it")
    assert problem in refusal.value.message
    assert refusal.value.message.endswith(f" at line {line}, column {column}")
    assert (refusal.value.reason, refusal.value.context) == ("bad_yaml", {"line": line, "column": column})


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"\xff", "it is not UTF-8"),
        (b"a: b\nc: \x00", "it is not YAML: character '\\x00' is not allowed at line 2"),
        (b"9" * 5_000, "it has a number with too many digits, or a character of no such number"),
        (b'"\\UFFFFFFFF"', "it has a number with too many digits, or a character of no such number"),
        (b"#" * (text.MAX_YAML + 1), "it has more than 4,194,304 bytes, which is too long for YAML here"),
    ],
    ids=["bytes", "control character", "number", "escape", "size"],
)
def test_what_has_no_column_is_told_too(written: bytes, told: str) -> None:
    with pytest.raises(Invalid) as refusal:
        text.from_yaml(written, "it")
    assert (refusal.value.reason, refusal.value.message) == ("bad_yaml", told)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"\xff", "it is not UTF-8"),
        (b'{"a": 1,\n "a": 1}', "it is not JSON: member 'a' is there twice"),
        (b"[NaN]", "it is not JSON: NaN is no number"),
        (b"[-1e999]", "it is not JSON: -1e999 is too large a number"),
        (b'{"a":\n x}', "it is not JSON: Expecting value at line 2, column 2"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"9" * 5_000, "it has a number with too many digits"),
    ],
    ids=["bytes", "twice", "NaN", "overflow", "syntax", "depth", "number"],
)
def test_what_is_wrong_with_json_is_told(written: bytes, told: str) -> None:
    with pytest.raises(Invalid) as refusal:
        text.from_json(written, "it")
    assert (refusal.value.reason, refusal.value.message) == ("bad_json", told)


LINES = [
    ('{\n"a": [\n1,\n{"b/c": 2}],\n\t"d~e":\n\t3}', {"": 1, "/a": 2, "/a/1": 4, "/a/1/b~1c": 4, "/d~0e": 5}),
    ("\na:\n  - 1\n  - b/c: 2\nd~e: &x\n  f: 3\ng: *x", {"": 2, "/a/1/b~1c": 4, "/d~0e": 5, "/d~0e/f": 6, "/g": 7}),
]


@pytest.mark.parametrize(("written", "lines"), LINES, ids=["JSON", "YAML"])
def test_every_value_has_a_line_and_what_is_missing_has_that_of_its_parent(written: str, lines: dict[str, int]) -> None:
    found = text.document(written.encode(), None, "it")
    assert {pointer: found.line(pointer) for pointer in lines} == lines
    assert found.line("/a/1/nothing/here") == 4
    assert found.line("/nothing") == found.line("")
    assert Document(1, {}).line("/a") is None


@pytest.mark.parametrize(
    ("written", "format", "value"),
    [
        (b' \n{"a": "yes"}', None, {"a": "yes"}),
        (b"[1]", None, [1]),
        (b"a: yes", None, {"a": "yes"}),
        (b"", None, None),
        (b"{a: 1}", Format.YAML, {"a": 1}),
        (b'"\\ud83d\\ude00"', Format.JSON, "\U0001f600"),
    ],
)
def test_text_that_begins_as_json_is_json_unless_its_name_says_otherwise(
    written: bytes, format: Format | None, value: Any
) -> None:
    assert text.document(written, format, "it").value == value


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Cn"], exclude_characters="\u2028\u2029\ufeff\ufffe\uffff")
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc/~<: ", max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_json_means_the_same_as_yaml(value: Any) -> None:
    written = json.dumps(value, ensure_ascii=False).encode()
    assert text.from_json(written, "it") == text.from_yaml(written, "it").value == value


@given(st.text("ab:-? \n\t[]{}&*!|>'\"%#,<~1e.\\xUu09\x00é", max_size=60))
def test_whatever_is_written_is_a_value_or_a_sentence(written: str) -> None:
    for format in (Format.JSON, Format.YAML, None):
        try:
            said = json.dumps(text.document(written.encode(), format, "it").value)
        except Invalid as refusal:
            said = refusal.message
        assert said
