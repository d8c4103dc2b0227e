"""The table of reasons is complete: every error in the source has a row with its class and its placeholders."""

import ast
import string
from pathlib import Path

import pytest

import penstock
from penstock import reasons
from penstock.errors import KINDS, Invalid

SOURCE = Path(penstock.__file__).parent
ERROR_CLASSES = {error_class.__name__ for error_class in KINDS}


def _raised_errors() -> list[tuple[str, str, str, set[str] | None]]:
    """List module, class, key and values of every error with a message in the table. None: values are not literal."""
    errors = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=error_class), args=[ast.Constant(value=str(key)), *rest]) if (
                    error_class in ERROR_CLASSES
                ):
                    if rest and not isinstance(rest[0], ast.Dict):
                        continue  # a complete message: of another process, or fixed by a contract
                    keys = rest[0].keys if rest and isinstance(rest[0], ast.Dict) else []
                    names = [
                        *(k.value if isinstance(k, ast.Constant) else None for k in keys),
                        *(k.arg for k in node.keywords),
                    ]
                    values = None if None in names else {str(name) for name in names}
                    errors.append((str(path.relative_to(SOURCE)), error_class, key, values))
    return errors


RAISED = _raised_errors()


def test_reasons_contain_every_raised_error_with_its_kind() -> None:
    assert len(RAISED) > 300
    unknown = [(module, key) for module, _, key, _ in RAISED if key not in reasons.REASONS]
    assert unknown == []
    assert [(module, key) for module, error_class, key, _ in RAISED if reasons.REASONS[key][0] != error_class] == []


def test_reasons_messages_have_a_value_for_every_placeholder() -> None:
    missing = []
    for module, _, key, values in RAISED:
        fields = {field for _, field, _, _ in string.Formatter().parse(reasons.REASONS[key][1]) if field}
        if values is not None and not fields <= values:
            missing.append((module, key, fields - values))
    assert missing == []


def test_reasons_of_one_name_have_one_kind() -> None:
    classes_by_name: dict[str, set[str]] = {}
    for key, (error_class, _) in reasons.REASONS.items():
        classes_by_name.setdefault(key.partition(".")[0], set()).add(error_class)
    assert {name for name, classes in classes_by_name.items() if len(classes) > 1} == set()


@pytest.mark.parametrize(
    ("template", "values", "message"),
    [
        ("{x!r} and {y}", {"x": "a", "y": 5}, "'a' and 5"),
        ("Valid: {names}", {"names": ["b", "a"]}, "Valid: b, a"),
        ("{n:row} left", {"n": 1}, "1 row left"),
        ("{n:row} left", {"n": 2000}, "2,000 rows left"),
        ("{n:,} bytes {{}}", {"n": 4096}, "4,096 bytes {}"),
    ],
)
def test_message_formats_lists_and_counts(
    monkeypatch: pytest.MonkeyPatch, template: str, values: dict[str, object], message: str
) -> None:
    monkeypatch.setitem(reasons.REASONS, "example.variant", ("Invalid", template))
    error = Invalid("example.variant", values)
    assert (error.reason, error.message, error.context) == ("example", message, {})
