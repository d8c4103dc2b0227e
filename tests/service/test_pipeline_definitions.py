"""Stored pipelines: access, roles and preconditions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.core.caller import Role
from penstock.core.odata import options
from penstock.core.pipeline.definition import StoredPipeline, parse_pipeline
from penstock.errors import Conflict, Forbidden, Invalid, NotFound, PenstockError
from penstock.lake import Lake
from penstock.service.pipelines import definitions as pipeline_definitions
from penstock.service.registry.preconditions import VersionPrecondition

SOURCE = {"dataset_id": "a1b2c3d4-e5f6-7890-abcd-ef1234567890"}
APPEND = {"type": "append", "parameters": {"source": SOURCE}}
ALL = options([], pipeline_definitions.SEARCH_FIELDS, default_top=50, max_top=200)


def value(name: str = "monthly", **members: Any) -> dict[str, Any]:
    return {"name": name, "working": {"dataset_id": str(UUID(int=7))}, "operations": [APPEND], **members}


def create(lake: Lake, name: str = "monthly") -> StoredPipeline:
    return pipeline_definitions.create(lake._workspace, lake.caller, value(name))


def show(lake: Lake, id: UUID) -> StoredPipeline:
    return pipeline_definitions.show(lake._workspace, lake.caller, id)


def replace_pipeline(lake: Lake, id: UUID, new: Any, expected: VersionPrecondition | None = None) -> StoredPipeline:
    return pipeline_definitions.replace(lake._workspace, lake.caller, id, new, expected)


def reason_of_error(error_class: type[PenstockError], use: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(error_class) as raised:
        use(*args)
    return raised.value.reason


def test_show_returns_created_pipeline(lake: Lake) -> None:
    created = create(lake)
    assert (created.pipeline, created.version) == (parse_pipeline(value()), 1)
    assert (created.created_by, created.updated_by) == (lake.caller.user, lake.caller.user)
    assert created.created_at == created.updated_at
    assert show(lake, created.id) == created
    assert list(created.as_json()) == [
        "id", "name", "working", "operations", "version", "created_at", "created_by", "updated_at", "updated_by",
    ]  # fmt: skip


def test_create_reports_all_errors(lake: Lake) -> None:
    created = create(lake)
    for wrong in (None, [], {}, value(" "), value(operations=[]), value(owner="me")):
        assert (
            reason_of_error(Invalid, pipeline_definitions.create, lake._workspace, lake.caller, wrong) == "bad_pipeline"
        )
        assert (
            reason_of_error(Invalid, replace_pipeline, lake, created.id, wrong, VersionPrecondition((1,)))
            == "bad_pipeline"
        )
    assert show(lake, created.id) == created


def test_replace_accepts_modified_output_of_show(lake: Lake) -> None:
    created = create(lake)
    after = replace_pipeline(lake, created.id, {**created.as_json(), "name": "weekly"})
    assert after == replace(created, pipeline=parse_pipeline(value("weekly")), version=2, updated_at=after.updated_at)
    assert after.updated_at > created.updated_at
    assert show(lake, created.id) == after
    copy = pipeline_definitions.create(lake._workspace, lake.caller, {**created.as_json(), "name": "copy"})
    assert (copy.version, copy.id != created.id) == (1, True)


def test_replace_without_changes_creates_no_version(lake: Lake) -> None:
    created = create(lake)
    assert replace_pipeline(lake, created.id, value(), VersionPrecondition((1,))) == created


EXPECTATIONS: list[tuple[VersionPrecondition | None, int | None, str | None]] = [
    (VersionPrecondition((1,)), None, None),
    (VersionPrecondition(None, from_header=True), None, None),
    (None, 1, None),
    (VersionPrecondition((1,), from_header=True), 1, None),
    (VersionPrecondition((2,)), None, "pipeline_changed"),
    (VersionPrecondition((2,), from_header=True), None, "precondition_failed"),
    (None, 2, "pipeline_changed"),
    (VersionPrecondition(None, from_header=True), 2, "pipeline_changed"),
    (VersionPrecondition((2,), from_header=True), 1, "precondition_failed"),
]


@pytest.mark.parametrize(("expected", "version", "reason"), EXPECTATIONS)
def test_replace_checks_expected_version(
    lake: Lake, expected: VersionPrecondition | None, version: int | None, reason: str | None
) -> None:
    created = create(lake)
    new = value("weekly") | ({} if version is None else {"version": version})
    if reason is None:
        assert replace_pipeline(lake, created.id, new, expected).version == 2
        return
    with pytest.raises(Conflict) as raised:
        replace_pipeline(lake, created.id, new, expected)
    assert raised.value.reason == reason
    assert raised.value.context == {"pipeline_id": str(created.id), "current_version": 1}
    assert show(lake, created.id) == created


def test_replace_without_version_is_rejected(lake: Lake) -> None:
    created = create(lake)
    assert reason_of_error(Invalid, replace_pipeline, lake, created.id, value("weekly")) == "missing_version"


@pytest.mark.parametrize("expected", [None, VersionPrecondition((1,)), VersionPrecondition(None, from_header=True)])
def test_removed_pipeline_is_not_found(lake: Lake, expected: VersionPrecondition | None) -> None:
    created = create(lake)
    pipeline_definitions.remove(lake._workspace, lake.caller, created.id, expected)
    assert reason_of_error(NotFound, show, lake, created.id) == "pipeline_not_found"
    assert pipeline_definitions.search(lake._workspace, lake.caller, ALL).items == []
    assert create(lake).id != created.id


def test_remove_of_changed_pipeline_conflicts(lake: Lake) -> None:
    created = create(lake)
    after = replace_pipeline(lake, created.id, value("weekly"), VersionPrecondition((1,)))
    for expected, reason in [
        (VersionPrecondition((1,)), "pipeline_changed"),
        (VersionPrecondition((1,), from_header=True), "precondition_failed"),
    ]:
        assert (
            reason_of_error(Conflict, pipeline_definitions.remove, lake._workspace, lake.caller, created.id, expected)
            == reason
        )
    assert show(lake, created.id) == after


USES: dict[str, tuple[Role, Callable[[Lake, UUID], Any]]] = {
    "create": (Role.DEVELOPER, lambda lake, _: create(lake, "another")),
    "show": (Role.VIEWER, show),
    "search": (Role.VIEWER, lambda lake, _: pipeline_definitions.search(lake._workspace, lake.caller, ALL)),
    "replace": (
        Role.DEVELOPER,
        lambda lake, id: replace_pipeline(lake, id, value("weekly"), VersionPrecondition((1,))),
    ),
    "remove": (Role.DEVELOPER, lambda lake, id: pipeline_definitions.remove(lake._workspace, lake.caller, id, None)),
}


@pytest.mark.parametrize("use", USES)
def test_viewer_reads_and_developer_writes_pipelines(lake: Lake, use: str) -> None:
    created = create(lake)
    min_role, function = USES[use]
    for role in Role:
        user = Lake(lake._workspace, replace(lake.caller, role=role), lake._folder)
        if role < min_role:
            assert reason_of_error(Forbidden, function, user, created.id) == "role_too_low"
        elif role is min_role:
            function(user, created.id)


@pytest.mark.parametrize("use", ["show", "replace", "remove"])
def test_pipeline_of_other_tenant_is_not_found(lake: Lake, other_tenant: Lake, use: str) -> None:
    created = create(lake)
    errors = set()
    for id in (created.id, uuid4()):
        with pytest.raises(NotFound) as raised:
            USES[use][1](other_tenant, id)
        errors.add(str(raised.value.as_dict()).replace(str(id), "ID"))
    assert len(errors) == 1
    assert show(lake, created.id) == created
    assert pipeline_definitions.search(other_tenant._workspace, other_tenant.caller, ALL).items == []
