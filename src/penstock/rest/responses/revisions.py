"""Responses for versioned entities: ETags, conditional requests and lists of revisions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

from fastapi import Path, Request, Response

from penstock.core import odata
from penstock.core.registry.lifecycle import LifecycleEntry, LifecycleState
from penstock.rest.requests import media_types
from penstock.rest.requests.page_limits import DEFAULT_REVISIONS, MAX_REVISIONS
from penstock.rest.requests.paging import next_page_link, page_options
from penstock.rest.requests.preconditions import is_not_modified
from penstock.rest.requests.preferences import preference_headers, preferred_page_size
from penstock.rest.requests.query_params import int_param, query_params

_MAX_VERSION = 2**31 - 1  # the largest value of the catalog's column

VersionPath = Annotated[str, Path(description="The version.", examples=["1"])]


class VersionedEntity(Protocol):
    """A schema, query or pipeline, or a revision of one."""

    @property
    def version(self) -> int: ...

    def as_json(self) -> dict[str, Any]: ...


def entity_response(
    entity: VersionedEntity,
    headers: Mapping[str, str] | None = None,
    status: int = 200,
    *,
    entity_set: odata.EntitySet | None = None,
    as_text: Callable[[Any], str] | None = None,
) -> Response:
    """Return an entity with its version as ETag, and with the context URL of its entity set.

    Args:
        as_text: returns the serialized JSON of the entity, if that is faster than to serialize it
    """
    context = {"@odata.context": odata.entity_context(entity_set)} if entity_set else {}
    tagged = _with_etag(entity, headers)
    if as_text:
        return media_types.prefixed_json_response(context, as_text(entity), status, tagged)
    return media_types.json_response({**context, **entity.as_json()}, status, tagged)


def conditional_response(
    request: Request,
    entity: VersionedEntity,
    headers: Mapping[str, str] | None = None,
    *,
    entity_set: odata.EntitySet | None = None,
    as_text: Callable[[Any], str] | None = None,
) -> Response:
    """Return an entity, or 304 Not Modified if the client has this version already."""
    tagged = _with_etag(entity, headers)
    if is_not_modified(request, tagged["etag"]):
        return Response(status_code=304, headers=tagged)
    return entity_response(entity, headers, entity_set=entity_set, as_text=as_text)


def deprecation_headers(entry: LifecycleEntry) -> dict[str, str]:
    """Return the header that every response about a deprecated schema or query has."""
    if entry.draft.state is not LifecycleState.DEPRECATED:
        return {}
    return {"deprecation": f"@{int(entry.state_changed_at.timestamp())}"}


def revisions_response(request: Request, list_versions: Callable[..., Sequence[VersionedEntity]]) -> Response:
    """Return a page of the revisions that `list_versions(before=…, limit=…)` finds, newest first."""
    options = page_options(request, default_items=DEFAULT_REVISIONS, max_items=MAX_REVISIONS)
    before = min(int_param(query_params(request), "before", _MAX_VERSION), _MAX_VERSION)
    if options.after is not None:
        before = odata.integer_key(options.after, _MAX_VERSION)
    revisions = list_versions(before=before, limit=options.top + 1)
    page = revisions[: options.top]
    body: dict[str, Any] = {"value": [revision.as_json() for revision in page]}
    if page and len(page) < len(revisions):
        body |= next_page_link(request, options, page[-1].version, len(page))
    return media_types.json_response(body, headers=preference_headers(preferred_page_size(request)))


def parse_version(params: dict[str, str], name: str = "version") -> int:
    """Return a version number from parameters; 0, which no entity has, if it is missing."""
    return min(int_param(params, name, 0), _MAX_VERSION)


def _with_etag(entity: VersionedEntity, headers: Mapping[str, str] | None) -> dict[str, str]:
    return {"etag": f'"{entity.version}"', **(headers or {})}
