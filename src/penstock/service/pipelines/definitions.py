"""Keep pipelines to be run again: whoever may read sees them, whoever may write changes them."""

import dataclasses
from typing import Any
from uuid import UUID

from penstock.catalog import pipelines
from penstock.catalog.odata_sql import Page
from penstock.core.caller import Caller, Role
from penstock.core.odata import Options
from penstock.core.pipeline.definition import Stored, sent
from penstock.service.registry.preconditions import Expected, meant_for
from penstock.service.workspace import Workspace

FIELDS = pipelines.FIELDS  # that can be searched


def create(ws: Workspace, caller: Caller, value: Any) -> Stored:
    caller.require(Role.DEVELOPER)
    pipeline = sent(value)
    with ws.db.write(caller) as tx:
        stored = Stored(pipelines.new_id(), pipeline, 1, tx.now, caller.user, tx.now, caller.user)
        pipelines.insert(tx, stored)
    return stored


def show(ws: Workspace, caller: Caller, id: UUID) -> Stored:
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return pipelines.find(tx, id)


def search(ws: Workspace, caller: Caller, options: Options) -> Page[Stored]:
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return pipelines.search(tx, options)


def replace(ws: Workspace, caller: Caller, id: UUID, value: Any, expected: Expected | None) -> Stored:
    """Put another pipeline in its place. The version it is made for comes with it, or as what is expected."""
    caller.require(Role.DEVELOPER)
    pipeline = sent(value)
    meant = meant_for(expected, value)
    with ws.db.write(caller) as tx:
        before = pipelines.hold(tx, id)
        for each in meant:
            each.check(before.version, pipelines.was_changed(before))
        if pipeline == before.pipeline:
            return before
        after = dataclasses.replace(
            before, pipeline=pipeline, version=before.version + 1, updated_at=tx.now, updated_by=caller.user
        )
        pipelines.replace(tx, before, after)
    return after


def remove(ws: Workspace, caller: Caller, id: UUID, expected: Expected | None) -> None:
    """Take a pipeline out of sight. What its runs did stays on record."""
    caller.require(Role.DEVELOPER)
    with ws.db.write(caller) as tx:
        stored = pipelines.hold(tx, id)
        if expected:
            expected.check(stored.version, pipelines.was_changed(stored))
        pipelines.remove(tx, stored)
