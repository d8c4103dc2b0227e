"""What pages know of the service: its REST API, asked in the user's name without leaving the process."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import httpx

_HERE = "http://localhost"  # nobody listens there: the application is asked directly
_PATIENCE = 120.0  # seconds
_ODATA = {"filter", "orderby", "top", "skip", "select", "count", "search"}


class Problem(Exception):
    """The service has said no, and in words why."""

    def __init__(self, status: int, told: Mapping[str, Any]) -> None:
        self.status, self.told = status, told
        own = told.get("error")
        within = own if isinstance(own, dict) else {}  # an operation says it in its own way
        self.code = str(told.get("code") or within.get("code") or "")
        self.sentence = str(
            told.get("detail") or within.get("message") or own or "The service did not say what went wrong."
        )
        super().__init__(self.sentence)

    @property
    def may_pass(self) -> bool:
        """Is it worth asking again?"""
        return self.status in (429, 500, 503)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """What is wrong with which part, where the service tells it part by part."""
        listed = self.told.get("errors")
        return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any  # JSON, or bytes where it is none
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def etag(self) -> str | None:
        return self.headers.get("etag")


class Api:
    """The service as one user may use it."""

    def __init__(self, application: Any, token: str | None) -> None:
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(application, raise_app_exceptions=False),
            base_url=_HERE,
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=_PATIENCE,
            trust_env=False,
        )

    async def get(self, path: str, **options: Any) -> Any:
        """The JSON that is there. Options with a name like `top` are OData's: `$top`."""
        return (await self.ask("GET", path, options=options)).body

    async def rows(self, path: str, **options: Any) -> Any:
        """As `get`, with fractions as exact as they were sent: as decimals."""
        return (await self.ask("GET", path, options=options, exact=True)).body

    async def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return (await self.ask("POST", path, body, headers=headers)).body

    async def put(self, path: str, body: Any, **headers: str) -> Any:
        """Headers are given as names: `if_match='"3"'`."""
        return (await self.ask("PUT", path, body, headers=headers)).body

    async def delete(self, path: str, **headers: str) -> None:
        await self.ask("DELETE", path, headers=headers)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        exact: bool = False,
    ) -> Answer:
        """`content` is sent as it is; `body` as JSON. A refusal is a `Problem`."""
        asked = {_option(name): _text(value) for name, value in (options or {}).items() if value is not None}
        sent = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        brings: dict[str, Any] = {}
        if content is not None:
            brings["content"] = content
        elif body is not None:
            brings["json"] = body
        answer = await self._client.request(method, path, params=asked or None, headers=sent, **brings)
        told = _read(answer, Decimal if exact else float)
        if answer.is_error:
            raise Problem(answer.status_code, told if isinstance(told, dict) else {})
        return Answer(answer.status_code, told, answer.headers)

    def speak_as(self, token: str) -> None:
        """From now on with another token."""
        self._client.headers["authorization"] = f"Bearer {token}"

    async def close(self) -> None:
        await self._client.aclose()


def part(text: str) -> str:
    """A word as part of a path, whatever it holds."""
    return quote(text, safe="")


def quoted(text: str) -> str:
    """A word as text in a filter, whatever it holds."""
    return "'" + text.replace("'", "''") + "'"


def _option(name: str) -> str:
    return f"${name}" if name in _ODATA else name


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(answer: httpx.Response, fraction: Callable[[str], Any]) -> Any:
    if not answer.content:
        return None
    is_json = "json" in answer.headers.get("content-type", "")
    return json.loads(answer.content, parse_float=fraction) if is_json else answer.content
