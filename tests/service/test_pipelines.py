"""Pipelines are kept for those who may see them, and changed by those who know what they change."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.core.caller import Role
from penstock.core.odata import options
from penstock.core.pipeline.definition import Stored, read
from penstock.errors import Conflict, Forbidden, Invalid, NotFound, PenstockError
from penstock.lake import Lake
from penstock.service.pipelines import definitions as pipelines
from penstock.service.registry.preconditions import Expected

SOURCE = {"dataset_id": "a1b2c3d4-e5f6-7890-abcd-ef1234567890"}
APPEND = {"type": "append", "parameters": {"source": SOURCE}}
ALL = options([], pipelines.FIELDS, default_top=50, max_top=200)


def value(name: str = "monthly", **members: Any) -> dict[str, Any]:
    return {"name": name, "working": {"dataset_id": str(UUID(int=7))}, "operations": [APPEND], **members}


def created(lake: Lake, name: str = "monthly") -> Stored:
    return pipelines.create(lake.workspace, lake.caller, value(name))


def shown(lake: Lake, id: UUID) -> Stored:
    return pipelines.show(lake.workspace, lake.caller, id)


def replaced(lake: Lake, id: UUID, new: Any, expected: Expected | None = None) -> Stored:
    return pipelines.replace(lake.workspace, lake.caller, id, new, expected)


def refused(kind: type[PenstockError], use: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(kind) as refusal:
        use(*args)
    return refusal.value.reason


def test_a_pipeline_is_shown_as_it_was_created(lake: Lake) -> None:
    made = created(lake)
    assert (made.pipeline, made.version) == (read(value()), 1)
    assert (made.created_by, made.updated_by) == (lake.caller.user, lake.caller.user)
    assert made.created_at == made.updated_at
    assert shown(lake, made.id) == made
    assert list(made.as_json()) == [
        "id", "name", "working", "operations", "version", "created_at", "created_by", "updated_at", "updated_by",
    ]  # fmt: skip


def test_all_that_is_wrong_with_a_pipeline_is_told(lake: Lake) -> None:
    made = created(lake)
    for wrong in (None, [], {}, value(" "), value(operations=[]), value(owner="me")):
        assert refused(Invalid, pipelines.create, lake.workspace, lake.caller, wrong) == "bad_pipeline"
        assert refused(Invalid, replaced, lake, made.id, wrong, Expected(1)) == "bad_pipeline"
    assert shown(lake, made.id) == made


def test_what_was_shown_can_be_changed_and_sent_back(lake: Lake) -> None:
    made = created(lake)
    after = replaced(lake, made.id, {**made.as_json(), "name": "weekly"})
    assert after == replace(made, pipeline=read(value("weekly")), version=2, updated_at=after.updated_at)
    assert after.updated_at > made.updated_at
    assert shown(lake, made.id) == after
    copy = pipelines.create(lake.workspace, lake.caller, {**made.as_json(), "name": "copy"})
    assert (copy.version, copy.id != made.id) == (1, True)


def test_what_changes_nothing_makes_no_version(lake: Lake) -> None:
    made = created(lake)
    assert replaced(lake, made.id, value(), Expected(1)) == made


EXPECTATIONS: list[tuple[Expected | None, int | None, str | None]] = [
    (Expected(1), None, None),
    (Expected(None, condition=True), None, None),
    (None, 1, None),
    (Expected(1, condition=True), 1, None),
    (Expected(2), None, "pipeline_changed"),
    (Expected(2, condition=True), None, "precondition_failed"),
    (None, 2, "pipeline_changed"),
    (Expected(None, condition=True), 2, "pipeline_changed"),
    (Expected(2, condition=True), 1, "precondition_failed"),
]


@pytest.mark.parametrize(("expected", "version", "reason"), EXPECTATIONS)
def test_a_change_is_made_for_a_version(
    lake: Lake, expected: Expected | None, version: int | None, reason: str | None
) -> None:
    made = created(lake)
    new = value("weekly") | ({} if version is None else {"version": version})
    if reason is None:
        assert replaced(lake, made.id, new, expected).version == 2
        return
    with pytest.raises(Conflict) as refusal:
        replaced(lake, made.id, new, expected)
    assert refusal.value.reason == reason
    assert refusal.value.context == {"pipeline_id": str(made.id), "current_version": 1}
    assert shown(lake, made.id) == made


def test_a_change_that_does_not_say_its_version_is_refused(lake: Lake) -> None:
    made = created(lake)
    assert refused(Invalid, replaced, lake, made.id, value("weekly")) == "no_version"


@pytest.mark.parametrize("expected", [None, Expected(1), Expected(None, condition=True)])
def test_a_removed_pipeline_is_gone(lake: Lake, expected: Expected | None) -> None:
    made = created(lake)
    pipelines.remove(lake.workspace, lake.caller, made.id, expected)
    assert refused(NotFound, shown, lake, made.id) == "pipeline_not_found"
    assert pipelines.search(lake.workspace, lake.caller, ALL).items == []
    assert created(lake).id != made.id


def test_a_pipeline_that_has_changed_is_not_removed(lake: Lake) -> None:
    made = created(lake)
    after = replaced(lake, made.id, value("weekly"), Expected(1))
    for expected, reason in [(Expected(1), "pipeline_changed"), (Expected(1, condition=True), "precondition_failed")]:
        assert refused(Conflict, pipelines.remove, lake.workspace, lake.caller, made.id, expected) == reason
    assert shown(lake, made.id) == after


USES: dict[str, tuple[Role, Callable[[Lake, UUID], Any]]] = {
    "create": (Role.DEVELOPER, lambda lake, _: created(lake, "another")),
    "show": (Role.VIEWER, shown),
    "search": (Role.VIEWER, lambda lake, _: pipelines.search(lake.workspace, lake.caller, ALL)),
    "replace": (Role.DEVELOPER, lambda lake, id: replaced(lake, id, value("weekly"), Expected(1))),
    "remove": (Role.DEVELOPER, lambda lake, id: pipelines.remove(lake.workspace, lake.caller, id, None)),
}


@pytest.mark.parametrize("use", USES)
def test_viewers_read_and_developers_write(lake: Lake, use: str) -> None:
    made = created(lake)
    least, function = USES[use]
    for role in Role:
        someone = Lake(lake.workspace, replace(lake.caller, role=role), lake.home)
        if role < least:
            assert refused(Forbidden, function, someone, made.id) == "role_too_low"
        elif role is least:
            function(someone, made.id)


@pytest.mark.parametrize("use", ["show", "replace", "remove"])
def test_a_foreign_pipeline_answers_as_an_unknown_one(lake: Lake, stranger: Lake, use: str) -> None:
    made = created(lake)
    answers = set()
    for id in (made.id, uuid4()):
        with pytest.raises(NotFound) as refusal:
            USES[use][1](stranger, id)
        answers.add(str(refusal.value.facts()).replace(str(id), "ID"))
    assert len(answers) == 1
    assert shown(lake, made.id) == made
    assert pipelines.search(stranger.workspace, stranger.caller, ALL).items == []
