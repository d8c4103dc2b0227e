"""API client of the pages: send requests with the user's token to the REST API in the same process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx

_BASE_URL = "http://localhost"  # a placeholder: requests go to the ASGI application without a network
_TIMEOUT_SECONDS = 120.0
_ODATA_OPTIONS = {"filter", "orderby", "top", "skip", "select", "count", "search"}
_INLINE_BYTES = 64 << 10  # a smaller body takes less time than passing it to a thread
_TRANSIENT_STATUSES = (429, 500, 503)


class ApiError(Exception):
    """An error response of the REST API.

    Attributes:
        status: HTTP status.
        payload: JSON object of the response.
        code: Code of the error, or an empty string.
        message: Message for the user.
    """

    def __init__(self, status: int, payload: Mapping[str, Any]) -> None:
        self.status, self.payload = status, payload
        error = payload.get("error")
        envelope = error if isinstance(error, dict) else {}  # pipeline operations have their own error format
        self.code = str(payload.get("code") or envelope.get("code") or "")
        self.message = str(
            payload.get("detail")
            or envelope.get("message")
            or error
            or "The service returned an error without a message."
        )
        super().__init__(self.message)

    @property
    def is_transient(self) -> bool:
        """True if a retry may succeed."""
        return self.status in _TRANSIENT_STATUSES

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The errors of single members, if the service reports them."""
        errors = self.payload.get("errors")
        return [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []


@dataclass(frozen=True)
class ApiResponse:
    """A successful response of the REST API."""

    status: int
    body: Any  # parsed JSON, or bytes for other media types
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def etag(self) -> str | None:
        return self.headers.get("etag")


class ApiClient:
    """Client of the REST API with the rights of one user."""

    def __init__(self, application: Any, token: str | None) -> None:
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(application, raise_app_exceptions=False),
            base_url=_BASE_URL,
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=_TIMEOUT_SECONDS,
            trust_env=False,
        )

    async def get(self, path: str, **options: Any) -> Any:
        """Return the JSON at a path. An option such as `top` is sent as the OData option `$top`."""
        return (await self.request("GET", path, options=options)).body

    async def get_exact(self, path: str, **options: Any) -> Any:
        """Return the JSON at a path as `get` does, with fractions as decimals, which keeps all digits."""
        return (await self.request("GET", path, options=options, exact_decimals=True)).body

    async def get_page(self, path: str, page_rows: int, **options: Any) -> Any:
        """Return a page of a list as `get_exact` does, with a next link if more items follow."""
        headers = page_headers(page_rows)
        return (await self.request("GET", path, options=options, headers=headers, exact_decimals=True)).body

    async def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return (await self.request("POST", path, body, headers=headers)).body

    async def put(self, path: str, body: Any, **headers: str) -> Any:
        """Send a PUT request. Underscores in the names of headers become hyphens: `if_match='"3"'`."""
        return (await self.request("PUT", path, body, headers=headers)).body

    async def delete(self, path: str, **headers: str) -> None:
        await self.request("DELETE", path, headers=headers)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        exact_decimals: bool = False,
    ) -> ApiResponse:
        """Send a request.

        Args:
            method: HTTP method.
            path: Path of the resource.
            body: Value to send as JSON.
            content: Bytes to send unchanged instead of a body.
            options: Query options. Options without a value are left out.
            headers: Headers, with underscores instead of hyphens.
            exact_decimals: Parse fractions as decimals instead of floats.

        Raises:
            ApiError: The service responded with an error.
        """
        params = {
            _option_name(name): _option_text(value) for name, value in (options or {}).items() if value is not None
        }
        sent_headers = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        payload: dict[str, Any] = {}
        if content is not None:
            payload["content"] = content
        elif body is not None:
            payload["json"] = body
        response = await self._client.request(method, path, params=params or None, headers=sent_headers, **payload)
        parse = partial(_parse_body, response, Decimal if exact_decimals else float)
        value = parse() if len(response.content) < _INLINE_BYTES else await asyncio.to_thread(parse)
        if response.is_error:
            raise ApiError(response.status_code, value if isinstance(value, dict) else {})
        return ApiResponse(response.status_code, value, response.headers)

    def set_token(self, token: str) -> None:
        """Use another token for the following requests."""
        self._client.headers["authorization"] = f"Bearer {token}"

    async def close(self) -> None:
        await self._client.aclose()


def path_segment(text: str) -> str:
    """Encode any text as one segment of a path."""
    return quote(text, safe="")


def page_headers(page_rows: int) -> dict[str, str]:
    """Return the headers of a request for a page of a list. `$top` would limit all pages together."""
    return {"prefer": f"odata.maxpagesize={page_rows}"}


def odata_string(text: str) -> str:
    """Encode any text as a string literal of an OData filter."""
    return "'" + text.replace("'", "''") + "'"


def _option_name(name: str) -> str:
    return f"${name}" if name in _ODATA_OPTIONS else name


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_body(response: httpx.Response, parse_fraction: Callable[[str], Any]) -> Any:
    if not response.content:
        return None
    is_json = "json" in response.headers.get("content-type", "")
    return json.loads(response.content, parse_float=parse_fraction) if is_json else response.content
