"""Write the page of the Python API from the docstrings of every name that `penstock` exports."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import penstock
from penstock import errors

INTRODUCTION = """\
Every name below is exported by `penstock`. The examples run in order, in an empty folder, as a test. Every error is a `PenstockError` with
`reason`, `message` and `context`; [errors](reference/errors.md) lists all reasons.
"""
_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Example):$")


def build_page(note: str) -> str:
    """Return the text of the page.

    Args:
        note: the line that marks a generated page
    """
    names = [name for name in penstock.__all__ if not name.startswith("_")]
    objects = {name: getattr(penstock, name) for name in names}
    error_classes = {name: value for name, value in objects.items() if _is_error(value)}
    parts = ["# Python API\n", note + INTRODUCTION]
    for name, value in objects.items():
        if name not in error_classes:
            parts += _class_part(name, value) if inspect.isclass(value) else _function_part(name, value, "##")
    parts += ["## Errors\n", "| class | meaning |", "| --- | --- |"]
    meanings = dict(re.findall(r"[├└]── (\w+) +(.*)", errors.__doc__ or "")) | {
        "PenstockError": "base class of the others"
    }
    parts += [f"| `{name}` | {meanings[name]} |" for name in error_classes]
    return "\n".join([*parts, ""])


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, errors.PenstockError)


def _class_part(name: str, value: type) -> Iterator[str]:
    yield f"## `{name}`\n"
    yield from _docstring(value)
    for member_name, member in public_members(value):
        if isinstance(member, property):
            yield f"### `{name}.{member_name}`\n"
            yield f"```python\n{member_name}: {_returns(member.fget)}\n```\n"
            yield from _docstring(member)
        else:
            yield from _function_part(member_name, member, "###", owner=f"{name}.")


def public_members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that Penstock defines, those of base classes last."""
    seen = set[str]()
    for base in value.__mro__:
        if not base.__module__.startswith("penstock."):
            continue
        for name, member in vars(base).items():
            is_documented = inspect.isfunction(member) or isinstance(member, property)
            if is_documented and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def _function_part(name: str, function: Callable[..., Any], heading: str, owner: str = "") -> Iterator[str]:
    yield f"{heading} `{owner}{name}`\n"
    yield f"```python\n{_signature(function)}\n```\n"
    yield from _docstring(function)


def _signature(function: Callable[..., Any]) -> str:
    """Return the signature as it is written in the source, one parameter per line where it is long."""
    node = _definition(function)
    parameters, returns = list(_parameters(node.args)), _returns(function)
    line = f"{node.name}({', '.join(parameters)}) -> {returns}"
    if len(line) <= 100:
        return line
    return f"{node.name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f") -> {returns}"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        if argument.arg != "self":
            yield _parameter(argument, default)
        if index + 1 == len(arguments.posonlyargs):
            yield "/"
    if arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg:
        yield f"**{_parameter(arguments.kwarg, None)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if argument.annotation is None else f": {_unquoted(argument.annotation)}"
    return f"{argument.arg}{annotation}" + ("" if default is None else f" = {ast.unparse(default)}")


def _unquoted(annotation: ast.expr) -> str:
    return ast.unparse(annotation).replace("'", "").replace('"', "")


def _returns(function: Callable[..., Any] | None) -> str:
    assert function is not None
    node = _definition(function)
    return "None" if node.returns is None else _unquoted(node.returns)


def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    return node


def _docstring(value: Any) -> Iterator[str]:
    """Yield the paragraphs of a docstring, with its sections as lists and its examples as code."""
    section, lines = "", list[str]()
    for line in [*(inspect.getdoc(value) or "").splitlines(), "Example:"]:
        if heading := _SECTION.match(line):
            yield from _section(section, lines)
            section, lines = heading[1], []
        else:
            lines.append(line)


def _section(section: str, lines: list[str]) -> Iterator[str]:
    text = textwrap.dedent("\n".join(lines)).strip()
    if not text:
        return
    match section:
        case "":
            yield from _paragraphs(text)
        case "Example":
            yield f"```{'pycon' if text.startswith('>>>') else 'py'}\n{text}\n```\n"
        case "Returns":
            yield f"**Returns**: {' '.join(text.split())}\n"
        case _:
            items = [" ".join(item.split()) for item in re.split(r"\n(?=\S)", text)]
            pairs = [item.partition(": ") for item in items]
            yield f"**{section}**\n"
            yield "\n".join(f"- `{name}`: {meaning}" for name, _, meaning in pairs) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """Yield prose as it is, and doctests as code."""
    for paragraph in re.split(r"\n\s*\n", text):
        is_example = paragraph.lstrip().startswith(">>>")
        yield f"```pycon\n{textwrap.dedent(paragraph)}\n```\n" if is_example else f"{paragraph}\n"
