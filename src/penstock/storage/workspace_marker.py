"""The object that names the workspace of a bucket, so that two workspaces never share a prefix by accident."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

from penstock.errors import Invalid, NotFound
from penstock.storage.object_store import ObjectStore

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class WorkspaceMarker:
    """Identity of the workspace in a bucket."""

    workspace: UUID
    tenant: UUID  # of the local command line and Python API


def claim_store(store: ObjectStore, tenant: UUID) -> tuple[WorkspaceMarker, bool]:
    """Store the marker of a new workspace, unless the bucket has one.

    Returns:
        The marker in the bucket, and whether it is the new one.
    """
    own = WorkspaceMarker(uuid4(), tenant)
    stored = {
        "format": _FORMAT,
        "workspace": str(own.workspace),
        "tenant": str(own.tenant),
        "created_at": datetime.now(UTC).isoformat(),
    }
    marker = _parse(store.create_marker(json.dumps(stored, indent=2).encode() + b"\n"))
    return marker, marker == own


def find_marker(store: ObjectStore) -> WorkspaceMarker:
    """Return the marker in the bucket.

    Raises:
        NotFound: the bucket has none
    """
    content = store.read_marker()
    if content is None:
        raise NotFound("store_not_initialized")
    return _parse(content)


def _parse(content: bytes) -> WorkspaceMarker:
    try:
        stored = json.loads(content)
        return WorkspaceMarker(UUID(stored["workspace"]), UUID(stored["tenant"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Invalid("store_marker_broken") from None
