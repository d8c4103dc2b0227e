"""Query executions of the other processes of `penstock serve --processes N`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from penstock.core.caller import Caller, Role
from penstock.rest.process_group import ProcessGroup, SiblingHandler, SiblingRequest
from penstock.service.queries.executions import ExecutionRecord, ExecutionSource

_LIST_ACTION, _CANCEL_ACTION = "list_executions", "cancel_execution"


@dataclass(frozen=True, slots=True)
class SiblingExecutions:
    """List and cancel the executions of all other processes of a group."""

    group: ProcessGroup

    def list(self, caller: Caller) -> Sequence[ExecutionRecord]:
        return self._fetch(_LIST_ACTION, _caller_members(caller))

    def cancel(self, caller: Caller, id: UUID) -> ExecutionRecord | None:
        return next(iter(self._fetch(_CANCEL_ACTION, {**_caller_members(caller), "id": str(id)})), None)

    def _fetch(self, action: str, members: Mapping[str, Any]) -> Sequence[ExecutionRecord]:
        responses = [
            response for response in self.group.fetch_others(action, members) if response
        ]  # empty: a handler failed
        return [ExecutionRecord.from_json(record) for response in responses for record in json.loads(response)]


def execution_handlers(executions: ExecutionSource) -> dict[str, SiblingHandler]:
    """Return the handlers of requests of `SiblingExecutions` for the executions of this process."""

    def list_(request: SiblingRequest) -> bytes:
        return _to_answer(executions.list(_to_caller(request)))

    def cancel(request: SiblingRequest) -> bytes:
        record = executions.cancel(_to_caller(request), UUID(request["id"]))
        return _to_answer([record] if record else [])

    return {_LIST_ACTION: list_, _CANCEL_ACTION: cancel}


def _to_answer(records: Sequence[ExecutionRecord]) -> bytes:
    return json.dumps([record.as_json() for record in records]).encode()


def _caller_members(caller: Caller) -> dict[str, Any]:
    return {"tenant": str(caller.tenant), "user": str(caller.user), "name": caller.name, "role": caller.role.name}


def _to_caller(request: SiblingRequest) -> Caller:
    return Caller(UUID(request["tenant"]), UUID(request["user"]), request["name"], Role[request["role"]])
