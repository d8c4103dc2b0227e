"""OpenAPI descriptions of the routes of the service itself: caller, health and metrics."""

from importlib.metadata import version

from penstock.core.caller import ROLES
from penstock.rest.openapi import examples
from penstock.rest.openapi.builders import PUBLIC, Operation, describe_responses
from penstock.rest.openapi.schemas.base import TEXT, UUID, object_of

_CALLER = {
    "name": "ada", "user": examples.USER_ID, "tenant": examples.TENANT_ID,
    "role": "analytics.developer", "version": version("penstock"),
}  # fmt: skip
_CALLER_MEMBERS = {"name": TEXT, "user": UUID, "tenant": UUID, "role": {"enum": list(ROLES)}, "version": TEXT}
_OK = {"const": "ok"}
_READY = object_of({"status": {"const": "ready"}, "parts": object_of({"catalog": _OK, "store": _OK}, {"spark": _OK})})

SHOW_CALLER: Operation = {
    "summary": "Show the caller",
    "description": "The authenticated caller and the version of the service.",
    "responses": describe_responses(200, "The caller.", _CALLER, object_of(_CALLER_MEMBERS), errors=[400, 403]),
}
CHECK_LIVENESS: Operation = {
    "summary": "Liveness probe",
    "responses": describe_responses(
        200, "The process is up.", {"status": "up"}, object_of({"status": {"const": "up"}})
    ),
    "openapi_extra": PUBLIC,
}
CHECK_READINESS: Operation = {
    "summary": "Readiness probe",
    "description": "The catalog is reachable and has the current migration, the store is writable, and Spark works if this process executes queued runs.",
    "responses": describe_responses(
        200,
        "The service is ready.",
        {"status": "ready", "parts": {"catalog": "ok", "store": "ok", "spark": "ok"}},
        _READY,
        errors=[503],
    ),
    "openapi_extra": PUBLIC,
}
SHOW_METRICS: Operation = {
    "summary": "Prometheus metrics",
    "responses": describe_responses(
        200, "The metrics.", "penstock_http_in_flight 1.0\n", TEXT, media_type="text/plain"
    ),
    "openapi_extra": PUBLIC,
}
