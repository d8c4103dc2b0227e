"""Strict JSON and YAML: equal values, and errors with positions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.payload import documents
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


@pytest.mark.parametrize("text", WORDS)
def test_parse_yaml_plain_words_are_json_values_or_text(text: str) -> None:
    value = documents.parse_yaml(f"x: {text}".encode(), "it").value["x"]
    assert (value, type(value)) == (WORDS[text], type(WORDS[text]))


def test_parse_yaml_member_names_are_text() -> None:
    assert documents.parse_yaml(b"1: a\nnull: b\n2026-01-31: c", "it").value == {
        "1": "a",
        "null": "b",
        "2026-01-31": "c",
    }


def test_parse_yaml_resolves_aliases() -> None:
    assert documents.parse_yaml(b"a: &x {b: [1]}\nc: [*x, *x]", "it").value == {"a": {"b": [1]}, "c": [{"b": [1]}] * 2}


def nested_aliases(width: int, layers: int) -> str:
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, layers)]
    return "\n".join(lines)


BAD_YAML = {  # error and position
    "a: 1\nb: 2\na: 3": ("member 'a' is duplicated", 3, 1),
    "{a: 1, a: 1}": ("member 'a' is duplicated", 1, 8),
    "a:\n  <<: {b: 1}": ("merging members with <<", 2, 3),
    "a: !!int 5": ("the tag 'tag:yaml.org,2002:int'", 1, 4),
    "a: !!python/object/apply:os.system [ls]": ("the tag", 1, 4),
    "a: ! x": ("the tag", 1, 4),
    "? [1, 2]\n: x": ("must be text", 1, 3),
    "a: &x b\n*x : c": ("must be text", 2, 1),
    "a: *absent": ("the alias 'absent' has no complete anchor", 1, 4),
    "a: &x [*x]": ("the alias 'x' has no complete anchor", 1, 8),
    "a: 1\n---\nb: 2": ("only one document", 2, 1),
    "a:\n\tb: 1": ("cannot start any token", 2, 1),
    "a: 'open": ("unexpected end of stream", 1, 9),
    "a: 1e999": ("the number 1e999 is too large", 1, 4),
    "[" * 500: ("more than 100 nested lists", 1, 101),
    "- " * 500: ("more than 100 nested lists", 1, 201),
    nested_aliases(10, 9): ("more than 200,000 values", 6, 10),
    f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 300)}]": ("more than 200,000 values", 2, 797),
    nested_aliases(1, 200): ("more than 100 nested lists", 100, 12),
}


@pytest.mark.parametrize("text", BAD_YAML, ids=lambda written: ascii(written)[:40])
def test_parse_yaml_reports_errors_with_line_and_column(text: str) -> None:
    problem, line, column = BAD_YAML[text]
    with pytest.raises(Invalid, match="it is not valid YAML: ") as raised:
        documents.parse_yaml(text.encode(), "it")
    assert problem in raised.value.message
    assert raised.value.message.endswith(f" at line {line}, column {column}")
    assert (raised.value.reason, raised.value.context) == ("bad_yaml", {"line": line, "column": column})


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (b"\xff", "it is not valid UTF-8"),
        (b"a: b\nc: \x00", "it is not valid YAML: character '\\x00' is not allowed at line 2"),
        (b"9" * 5_000, "it contains a number that is too long or an invalid \\U escape"),
        (b'"\\UFFFFFFFF"', "it contains a number that is too long or an invalid \\U escape"),
        (b"#" * (documents.MAX_YAML_BYTES + 1), "it exceeds the limit of 4,194,304 bytes for YAML"),
    ],
    ids=["bytes", "control character", "number", "escape", "size"],
)
def test_parse_yaml_reports_errors_without_column(text: bytes, reported: str) -> None:
    with pytest.raises(Invalid) as raised:
        documents.parse_yaml(text, "it")
    assert (raised.value.reason, raised.value.message) == ("bad_yaml", reported)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (b"\xff", "it is not valid UTF-8"),
        (b'{"a": 1,\n "a": 1}', "it is not valid JSON: member 'a' is duplicated"),
        (b"[NaN]", "it is not valid JSON: NaN is not a JSON number"),
        (b"[-1e999]", "it is not valid JSON: the number -1e999 is too large"),
        (b'{"a":\n x}', "it is not valid JSON: Expecting value at line 2, column 2"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"9" * 5_000, "it contains a number with too many digits"),
    ],
    ids=["bytes", "twice", "NaN", "overflow", "syntax", "depth", "number"],
)
def test_parse_json_reports_errors(text: bytes, reported: str) -> None:
    with pytest.raises(Invalid) as raised:
        documents.parse_json(text, "it")
    assert (raised.value.reason, raised.value.message) == ("bad_json", reported)


LINES = [
    ('{\n"a": [\n1,\n{"b/c": 2}],\n\t"d~e":\n\t3}', {"": 1, "/a": 2, "/a/1": 4, "/a/1/b~1c": 4, "/d~0e": 5}),
    ("\na:\n  - 1\n  - b/c: 2\nd~e: &x\n  f: 3\ng: *x", {"": 2, "/a/1/b~1c": 4, "/d~0e": 5, "/d~0e/f": 6, "/g": 7}),
]


@pytest.mark.parametrize(("text", "lines"), LINES, ids=["JSON", "YAML"])
def test_document_line_falls_back_to_parent(text: str, lines: dict[str, int]) -> None:
    document = documents.parse_document(text.encode(), None, "it")
    assert {pointer: document.line(pointer) for pointer in lines} == lines
    assert document.line("/a/1/nothing/here") == 4
    assert document.line("/nothing") == document.line("")
    assert Document(1, {}).line("/a") is None


@pytest.mark.parametrize(
    ("text", "format", "value"),
    [
        (b' \n{"a": "yes"}', None, {"a": "yes"}),
        (b"[1]", None, [1]),
        (b"a: yes", None, {"a": "yes"}),
        (b"", None, None),
        (b"{a: 1}", Format.YAML, {"a": 1}),
        (b'"\\ud83d\\ude00"', Format.JSON, "\U0001f600"),
    ],
)
def test_parse_document_detects_json_unless_format_is_set(text: bytes, format: Format | None, value: Any) -> None:
    assert documents.parse_document(text, format, "it").value == value


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
def test_parse_json_and_parse_yaml_return_equal_values(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False).encode()
    assert documents.parse_json(text, "it") == documents.parse_yaml(text, "it").value == value


@given(st.text("ab:-? \n\t[]{}&*!|>'\"%#,<~1e.\\xUu09\x00é", max_size=60))
def test_parse_document_of_any_text_returns_value_or_raises_invalid(text: str) -> None:
    for format in (Format.JSON, Format.YAML, None):
        try:
            result = json.dumps(documents.parse_document(text.encode(), format, "it").value)
        except Invalid as raised:
            result = raised.message
        assert result
