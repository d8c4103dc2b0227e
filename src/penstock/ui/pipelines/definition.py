"""A pipeline as people write it: as JSON, with the line of whatever is wrong, and a first one to start from."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.pipeline.definition import sent
from penstock.core.payload.documents import Document, Format, document
from penstock.errors import Invalid

Dataset = Mapping[str, Any]  # as the API tells it
Facts = tuple[tuple[str, str], ...]  # what is known of a refusal: a name and a value
MEMBERS = ("name", "working", "operations", "output")  # that people write; the service keeps the others
_ID = re.compile(r'"([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"')
_NOT_TOLD = ("operation_order", "pointer")  # its place says it already


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a pipeline."""

    sentence: str
    line: int | None = None  # the first is 1; None: nobody knows
    pointer: str = ""
    facts: Facts = ()

    @property
    def place(self) -> str:
        return " · ".join(part for part in (f"Line {self.line}" if self.line else "", self.pointer) if part)


def text(pipeline: Mapping[str, Any]) -> str:
    """A pipeline that is stored, without what the service keeps."""
    return written({name: pipeline[name] for name in MEMBERS if name in pipeline})


def settled(value: Any) -> str:
    """A pipeline that somebody sends, as the service would show it. Its shape must be right."""
    return text(sent(value).as_json())


def written(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def read(given: str) -> Document | Fault:
    """The JSON with the lines of its parts, or where it ends to be JSON."""
    try:
        return document(given.encode("utf-8", "surrogatepass"), Format.JSON, "the pipeline")
    except Invalid as refusal:
        position = refusal.context.get("position")
        return Fault(refusal.message, None if position is None else given.count("\n", 0, position) + 1)


def placed(document: Document, errors: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """What the service says is wrong, with the lines where it is."""
    return [
        Fault(
            str(each.get("message", "")),
            document.line(pointer := str(each.get("pointer", ""))),
            pointer,
            facts(each.get("details") or {}),
        )
        for each in errors
    ]


def facts(details: Mapping[str, Any]) -> Facts:
    """What is known of a refusal, in words: `extra columns`, `a, b`."""
    return tuple(
        (name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in details.items()
        if name not in _NOT_TOLD and value is not None
    )


def ids(given: str) -> list[tuple[str, int]]:
    """Every id in the text, and where it ends."""
    return [(found[1].lower(), found.end()) for found in _ID.finditer(given)]


def example(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """A first pipeline: one dataset into another that has room for its columns, or one that loses its doubles."""
    for working in datasets:
        for source in datasets:
            if not working["read_only"] and working["id"] != source["id"] and _has_room(working, source):
                return {
                    "name": f"{source['name']} into {working['name']}",
                    "working": {"dataset_id": working["id"]},
                    "operations": [operation("append", source)],
                }
    only = next((each for each in datasets if not each["read_only"]), datasets[0])
    schema, _, table = only["name"].partition(".")
    alone = operation("merge", only)
    alone["parameters"]["strategy"] = "deduplicate"
    return {
        "name": f"{only['name']} without doubles",
        "working": {"dataset_id": only["id"]},
        "operations": [alone],
        **({"output": {"schema_name": schema, "table_name": f"{table}_unique"}} if only["read_only"] else {}),
    }


def operation(kind: str, source: Dataset) -> dict[str, Any]:
    """An operation to begin with."""
    parameters: dict[str, Any] = {"source": {"dataset_id": source["id"]}}
    if kind == "merge":
        names = [column["name"] for column in source["schema"]]
        parameters |= {"key_columns": ["id" if "id" in names else names[0]], "strategy": "upsert"}
    return {"type": kind, "parameters": parameters}


def extended(pipeline: Any, new: Mapping[str, Any]) -> dict[str, Any] | None:
    """The pipeline with one more operation, which is done last; None: there is no list to add it to."""
    if not (isinstance(pipeline, dict) and isinstance(given := pipeline.get("operations"), list)):
        return None
    orders = [each["order"] for each in given if isinstance(each, dict) and isinstance(each.get("order"), int)]
    last = {"type": new["type"], "order": max(orders) + 1, **new} if orders else new
    return {**pipeline, "operations": [*given, last]}


def differences(theirs: str, mine: str) -> list[tuple[str, str]]:
    """Line by line, with a few lines around: `-` theirs, `+` mine, ` ` both; `…` where lines are left out."""
    return list(_differences(theirs, mine))


def _differences(theirs: str, mine: str) -> Iterator[tuple[str, str]]:
    lines = list(difflib.unified_diff(theirs.splitlines(), mine.splitlines(), lineterm="", n=2))[2:]
    for number, line in enumerate(lines):
        if not line.startswith("@@"):
            yield line[0], line[1:]
        elif number:
            yield "…", ""


def _has_room(working: Dataset, source: Dataset) -> bool:
    """Surely: same names, same types. What would fit besides is for the service to say."""
    given = {column["name"]: column["type"] for column in source["schema"]}
    there = {column["name"]: column["type"] for column in working["schema"]}
    needed = {column["name"] for column in working["schema"] if not column["nullable"]}
    return needed <= given.keys() and all(there.get(name) == type_ for name, type_ in given.items())
