"""Requests with ids and names of another tenant reveal and change nothing.

A response may echo only its own request: the path, the query, the body, and the headers x-request-id, content-type and
idempotency-key. It never echoes tokens, conditions, cookies or any other header. A log line may contain the path and the
request id of the request, but no other part of it; a log line of a run contains the run id and its tenant.
"""

import io
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

import httpx
from fastapi import FastAPI

from penstock.core.caller import Role
from penstock.core.registry import gts
from penstock.json_logs import JsonFormatter
from penstock.rest.context import RestContext
from penstock.service.auth.tokens import mint
from rest.rest_client import HOUR, OTHER_TENANT, SECRET, TENANT, bearer, check_response, serve, token

# Texts that only the owner sends, so no response to another tenant may contain them.
SECRETS = {
    "metadata": "owl7d41c9",
    "field description": "elk93be02",
    "reason": "yak5510fa",
    "cell": "emu28c7d6",
    "second description": "gnu64a1e8",
    "second column": "ibis_0f95b7",
    "alias": "newt-6ad08c",
    "selector": "toad31f7e9",
    "query description": "stoat44b0a2",
    "column of SQL": "mink_e81f07",
}
# Words that the other tenant sends, each with an unused word of the same length.
SHARED_WORDS = {
    "schema_name": ("Heron-4c1f88", "Heron-000000"),
    "description": ("Raven 91d3b7", "Raven 000000"),
    "field": ("otter_77e2ab", "otter_000000"),
    "dataset": ("zoo_5b8e13.lynx_e0c4d1", "zoo_000000.lynx_000000"),
    "pipeline_name": ("Crane-19e7a4", "Crane-000000"),
    "query_name": ("Egret-5d02c8", "Egret-000000"),
    "column": ("bison_3fa60d", "bison_000000"),
    "value": ("tapir8c25f1", "tapir000000"),
    "user": ("moose-d71c3e", "moose-000000"),
    "key": ("quail-b2960c", "quail-000000"),
    "tenant": (str(TENANT), "11111111-2222-3333-4444-000000000000"),
}

NAMES = (
    "schema_id", "gts_id", "dataset_id", "dataset", "pipeline_id", "run_id", "query_id", "pipeline_name", "query_name",
    "schema_name", "field", "column", "tenant", "user",
)  # fmt: skip
PATHS = (
    ["/gts", "/datasets", "/pipelines", "/runs", "/queries"] * 4
    + ["/gts/infer", "/@", "/gts/@/@", "/datasets/@/@", "/runs/@"]
    + [f"/gts/{key}" for key in ("<schema_id>", "<gts_id>", "@")] * 3
    + [f"/gts/{key}/{tail}" for key in ("<schema_id>", "<gts_id>")
       for tail in ("versions", "versions/1", "versions/2", "diff", "references", "json-schema", "transitions",
                    "validate", "compatibility", "undelete")]
    + [f"/datasets/{key}{tail}" for key in ("<dataset_id>", "<dataset>", "@")
       for tail in ("", "/rows", "/schema", "/history", "/profile", "/operations")]
    + ["/pipelines/validate", "/pipelines/<pipeline_id>", "/pipelines/<pipeline_id>/runs", "/pipelines/@"] * 2
    + ["/pipelines/<pipeline_id>/undelete"]
    + ["/runs/<run_id>", "/runs/<run_id>/cancel"] * 2
    + ["/queries/preview", "/queries/@", "/queries/executions", "/queries/executions/<run_id>"] * 2
    + [f"/queries/{key}{tail}" for key in ("<query_id>", "<query_name>")
       for tail in ("", "/results", "/versions", "/versions/1", "/transitions", "/undelete")]
)  # fmt: skip
QUERIES = [
    ("$filter", "name eq '<schema_name>'"), ("$filter", "id eq <schema_id>"), ("$filter", "id in ('<schema_id>')"),
    ("$filter", "contains(description, '<description>')"), ("$filter", "fields/any(f: f/name eq '<field>')"),
    ("$filter", "<field> eq 1"), ("$filter", "tenant_id eq <tenant>"), ("$filter", "name ne '<schema_name>'"),
    ("$filter", "id eq <dataset_id> or name eq '<dataset>'"), ("$filter", "author eq '<user>'"),
    ("$filter", "not (name eq '<dataset>')"), ("$search", "<schema_name>"), ("$search", "<dataset>"),
    ("$search", '"<description>"'), ("$orderby", "<column>"), ("$orderby", "name desc"), ("$select", "<field>"),
    ("$select", "id,name,tenant_id"), ("$count", "true"), ("$top", "5"), ("$skip", "0"), ("version", "1"),
    ("where", "<column> = '<value>'"), ("columns", "<column>"), ("column", "<column>"), ("from", "1"), ("to", "2"), ("before", "9"),
    ("$filter", "pipeline_id eq <pipeline_id> or id eq <run_id>"), ("$filter", "state ne 'failed'"),
    ("$filter", "name eq '<query_name>' or returns_schema_id eq <schema_id>"), ("versions", "<dataset>:1"),
    ("$search", "<pipeline_name>"), ("name", "<dataset>"), ("force", "true"), ("tenant_id", "<tenant>"), ("<field>", "<value>"),
]  # fmt: skip
_FIELDS = [{"name": "<field>", "type": "string", "description": "<description>"}]
_SCHEMA = {"name": "<schema_name>", "type_id": gts.QUERY_RETURNS, "fields": _FIELDS}
_SOURCE = {"source": {"dataset_id": "<dataset_id>"}, "source_selector": "<column> = '<value>'"}
_APPEND = {"type": "append", "alias": "<field>", "parameters": _SOURCE}
_MERGE = {"type": "merge", "parameters": {**_SOURCE, "key_columns": ["<column>"], "strategy": "upsert"}}
_PIPELINE = {"name": "<pipeline_name>", "working": {"dataset_id": "<dataset_id>"}, "operations": [_APPEND, _MERGE]}
_SQL = "SELECT <column> AS <field> FROM <dataset>"
_QUERY = {"name": "<query_name>", "sql": _SQL, "returns_schema_id": "<schema_id>"}
_OWN_SQL = {**_QUERY, "sql": "SELECT '<value>' AS <field> WHERE '<column>' <> $<column>"}
_PINNED_SQL = "SELECT * FROM <dataset> AS t AT (VERSION => 1) JOIN read_csv('<value>') USING (<column>)"
JSON_BODIES: list[Any] = [
    _QUERY,
    {**_QUERY, "returns_schema_id": "<gts_id>", "version": 1, "id": "<query_id>"},
    _OWN_SQL,
    {"sql": _SQL},
    {"sql": _SQL, "name": "<query_name>"},
    {"sql": _SQL, "parameters": {"<column>": "<value>"}},
    {"sql": _PINNED_SQL},
    {"sql": "SELECT $<column> AS <field>", "parameters": {"<column>": "<value>"}},
    _APPEND,
    _MERGE,
    _PIPELINE,
    {**_PIPELINE, "version": 1, "working": {"dataset_id": "<dataset_id>", "dataset_version": 1}},
    {},
    _SCHEMA,
    {"entity": {**_SCHEMA, "description": "<description>"}},
    {**_SCHEMA, "id": "<schema_id>", "gts_id": "<gts_id>", "tenant_id": "<tenant>", "version": 1},
    {"name": "<schema_name>", "version": 2, "fields": _FIELDS},
    {"description": "<description>", "version": 1},
    {"to": "ARCHIVED", "version": 1, "reason": "<description>"},
    {"to": "DEPRECATED", "version": 2},
    {"fields": [{"name": "<field>", "type": "number"}]},
    {"rows": [{"<field>": "<value>"}, {"<column>": 1}], "strict": True},
    {"dataset": "<dataset>"},
    {"dataset": "<dataset_id>", "version": 1},
    {"name": "<dataset>", "schema": [{"name": "<column>", "type": "int64"}]},
    {"<field>": "<schema_id>"},
    [{"op": "test", "path": "/version", "value": 2}, {"op": "copy", "from": "/metadata", "path": "/description"}],
    [{"op": "test", "path": "/name", "value": "<schema_name>"}],
    "<gts_id>",
]
BODIES = [
    *((media_type, json.dumps(body)) for body in JSON_BODIES
      for media_type in ("application/json", "application/merge-patch+json", "application/json-patch+json")),
    ("text/csv", "<column>,<field>\n<value>,1\n"),
    ("application/x-ndjson", '{"<column>": "<value>"}\n'),
    ("text/<field>", "<value>"),
    ("application/json", '{"<field>": <value>}'),
]  # fmt: skip
VALID_BODIES = {  # valid bodies by path
    "/gts": _SCHEMA,
    "/datasets": {"name": "<dataset>", "schema": [{"name": "<column>", "type": "int64"}]},
    "/datasets/<dataset_id>/operations": _APPEND,
    "/datasets/<dataset>/operations": _MERGE,
    "/queries": _QUERY,
    "/queries/preview": {"sql": _SQL},
    "/queries/<query_id>": {**_QUERY, "version": 1},
    "/queries/<query_id>/transitions": {"to": "DEPRECATED", "version": 1},
    "/pipelines": _PIPELINE,
    "/pipelines/validate": _PIPELINE,
    "/pipelines/<pipeline_id>": {**_PIPELINE, "version": 1},
    "/pipelines/<pipeline_id>/runs": {},
    "/runs/<run_id>/cancel": {},
}
HEADERS = [
    ("x-request-id", "<schema_id>.<turn>"), ("x-request-id", "<column>.<turn>"), ("x-request-id", "<schema_name> <turn>"),
    ("if-match", '"1"'), ("if-match", '"2"'), ("if-match", "*"), ("if-match", '"<schema_id>"'),
    ("if-none-match", '"2"'), ("if-none-match", "*"), ("if-none-match", '"<dataset_id>.1"'),
    ("idempotency-key", "<key>"), ("accept", "application/vnd.apache.parquet"), ("accept", "text/<field>"),
    ("authorization", "Bearer <expired>"), ("authorization", "Bearer <user>"), ("cookie", "tenant=<tenant>"),
    ("x-tenant-id", "<tenant>"), ("x-forwarded-user", "<user>"), ("x-http-method-override", "DELETE"),
]  # fmt: skip
ECHOED_HEADERS = ("x-request-id", "content-type", "idempotency-key")
METHODS = ["GET"] * 8 + ["POST"] * 6 + ["PUT", "PATCH", "DELETE"] * 2 + ["HEAD", "OPTIONS"]

Words = dict[str, str]


@dataclass(frozen=True)
class RequestTemplate:
    """A request with placeholders for words: `<field>`."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: dict[str, str]
    content: str | None
    role: Role

    @classmethod
    def generate(cls, rng: Random) -> "RequestTemplate":
        method, path = rng.choice(METHODS), rng.choice(PATHS)
        headers = dict(rng.sample(HEADERS, rng.choice([0, 0, 1, 2])))
        query = dict(rng.sample(QUERIES, rng.choice([0, 1, 1, 2])))
        content = None
        if method in ("POST", "PUT", "PATCH"):
            headers["content-type"], content = rng.choice(BODIES)
            if path in VALID_BODIES and rng.choice([True, False]):
                headers["content-type"], content, query = "application/json", json.dumps(VALID_BODIES[path]), {}
        return cls(
            method,
            re.sub("@", lambda _: f"<{rng.choice(NAMES)}>", path),
            tuple(query.items()),
            headers,
            content,
            rng.choice([Role.ADMIN, Role.ADMIN, Role.DEVELOPER, Role.VIEWER]),
        )

    def fill(self, words: Words) -> "RequestTemplate":
        def substitute(text: str) -> str:
            return re.sub("<([a-z_]+)>", lambda match: words[match[1]], text)

        query = tuple((substitute(name), substitute(value)) for name, value in self.query)
        headers = {name: substitute(value) for name, value in self.headers.items()}
        content = None if self.content is None else substitute(self.content)
        return RequestTemplate(self.method, substitute(self.path), query, headers, content, self.role)

    def send(self, http: httpx.Client) -> httpx.Response:
        headers = bearer(token(self.role, OTHER_TENANT, "mallory")) | self.headers
        return http.request(self.method, self.path, params=self.query or None, headers=headers, content=self.content)

    def may_be_echoed(self) -> str:
        headers = [self.headers.get(name, "") for name in ECHOED_HEADERS]
        return normalize(" ".join([unquote(self.path), *map(" ".join, self.query), self.content or "", *headers]))

    def may_be_logged(self) -> str:
        return normalize(f"{unquote(self.path)} {self.headers.get('x-request-id', '')}")


@dataclass
class TenantOwner:
    """The tenant whose data must not be visible to others."""

    http: httpx.Client
    words: Words = field(default_factory=dict)
    requests: set[str] = field(default_factory=set)

    def create_entities(self) -> None:
        shared = {name: word for name, (word, _) in SHARED_WORDS.items()}
        first_schema = {
            "name": shared["schema_name"],
            "type_id": gts.QUERY_RETURNS,
            "description": shared["description"],
            "metadata": {"note": SECRETS["metadata"]},
            "fields": [{"name": shared["field"], "type": "string", "description": SECRETS["field description"]}],
        }
        schema = self._create("/gts", json=first_schema)
        self._request(
            "PUT", f"/gts/{schema}", json={**first_schema, "version": 1, "metadata": {SECRETS["metadata"]: 1}}
        )
        second = self._create(
            "/gts", json={**first_schema, "name": "Second", "description": SECRETS["second description"]}
        )
        transition = {"to": "DEPRECATED", "version": 1, "reason": SECRETS["reason"]}
        self._request("POST", f"/gts/{second}/transitions", json=transition)
        rows = f"{shared['column']},{SECRETS['second column']}\n{shared['value']},{SECRETS['cell']}\n"
        upload = {"content": rows, "headers": {"content-type": "text/csv", "idempotency-key": shared["key"]}}
        dataset = self._create("/datasets", params={"name": shared["dataset"]}, **upload)
        sql = (
            f"SELECT {shared['column']} AS {shared['field']}, 1 AS {SECRETS['column of SQL']} FROM {shared['dataset']}"
        )
        draft = {"name": shared["query_name"], "description": SECRETS["query description"], "sql": sql}
        query = self._create("/queries", json={**draft, "returns_schema_id": schema})
        pipeline = self._create("/pipelines", json=self._pipeline(dataset))
        run = self._create(f"/pipelines/{pipeline}/runs")
        ids = {"schema_id": schema, "gts_id": f"{gts.QUERY_RETURNS}{schema}", "dataset_id": dataset}
        self.words = {**shared, **ids, "pipeline_id": pipeline, "run_id": run, "query_id": query}
        while not self._request("GET", f"/runs/{run}").json()["ended_at"]:
            pass

    def all_entities(self) -> Any:
        """Return all entities that the owner can read."""
        paths = ("/gts", "/datasets", "/pipelines", "/runs", "/queries")
        entities = [self._request("GET", f"{path}?$count=true").json() for path in paths]
        for schema in entities[0]["value"]:
            path = f"/gts/{schema['id']}"
            entities += [
                self._request("GET", f"{path}/{tail}").json() for tail in ("versions", "references", "json-schema")
            ]
        for dataset in entities[1]["value"]:
            path = f"/datasets/{dataset['id']}"
            entities += [self._request("GET", f"{path}/{tail}").json() for tail in ("rows", "history", "schema")]
        for query in entities[4]["value"]:
            path = f"/queries/{query['id']}"
            entities += [self._request("GET", f"{path}/{tail}").json() for tail in ("versions", "results")]
        return entities

    def _pipeline(self, dataset: str) -> Any:
        """Return a pipeline whose run fails with an unknown column, so that the run record contains the selector."""
        source = {"dataset_id": dataset}
        parameters = {"source": source, "source_selector": f"{SECRETS['selector']} = 1"}
        operation = {"type": "append", "alias": SECRETS["alias"], "parameters": parameters}
        return {"name": SHARED_WORDS["pipeline_name"][0], "working": source, "operations": [operation]}

    def _create(self, path: str, **options: Any) -> str:
        id: str = self._request("POST", path, **options).json()["id"]
        return id

    def _request(self, method: str, path: str, headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:
        authorization = bearer(token(Role.ADMIN, TENANT, SHARED_WORDS["user"][0]))
        response = self.http.request(method, path, headers={**authorization, **(headers or {})}, **options)
        assert response.is_success, response.text
        self.requests.add(response.headers["x-request-id"])
        return response


def test_other_tenant_reads_and_changes_nothing(app: FastAPI, rest_context: RestContext, soak: bool) -> None:
    rng, statuses, requests = Random(20261116), Counter[int](), dict[str, RequestTemplate]()
    with (
        captured_logs() as log,
        serve(app, rest_context.limits) as address,
        httpx.Client(base_url=address, timeout=60) as http,
    ):
        owner, headers = TenantOwner(http), bearer(token(Role.ADMIN, OTHER_TENANT, "mallory"))
        owner.create_entities()
        own_schema = {**_SCHEMA, "name": "Mine", "fields": [{"name": "mine", "type": "string"}]}
        assert http.post("/gts", json=own_schema, headers=headers).status_code == 201
        before = owner.all_entities()
        detector = LeakDetector([*owner.words.values(), *SECRETS.values()])
        assert detector.find_in(json.dumps(before)) >= {normalize(word) for word in SECRETS.values()}

        unused_words = unknown_words()
        for turn in range(1500 if soak else 400):
            template, pair = RequestTemplate.generate(rng), []
            for words in (owner.words, unused_words):
                request = template.fill(words | per_request_words(turn, words))
                response = request.send(http)
                check_response(response)
                assert response.status_code < 500, (request, response.text)
                visible = f"{response.headers.multi_items()} {response.text}"
                assert not detector.find_in(visible) - detector.find_in(request.may_be_echoed()), (request, visible)
                requests[response.headers["x-request-id"]] = request
                statuses[response.status_code] += 1
                pair.append(comparable_response(response, words, unused_words))
                if response.status_code == 201:  # the entity of the other tenant must not affect the second request
                    assert http.delete(response.headers["location"], headers=headers).status_code == 204
            assert pair[0] == pair[1], template

        assert not detector.find_in(http.get("/metrics").text)
        assert owner.all_entities() == before

    assert requests.keys() <= log.keys()
    own_run = normalize(f"{owner.words['run_id']} {TENANT}")
    for request_id in log.keys() - owner.requests:
        loggable = requests[request_id].may_be_logged() if request_id in requests else ""
        for line in log[request_id]:
            is_run_line = json.loads(line)["logger"] == "penstock.service.pipelines.run_worker"
            assert not detector.find_in(line) - detector.find_in(own_run if is_run_line else loggable), line
    assert all(statuses[code] for code in (200, 201, 400, 401, 403, 404, 405, 415)), statuses


def test_secret_detector_finds_encoded_words() -> None:
    detector = LeakDetector(["Heron-4c1f88", str(TENANT)])
    assert detector.find_in('{"x": "HERON-4C1F88"}') == {"heron4c1f88"}
    assert detector.find_in(TENANT.hex) == {TENANT.hex}
    assert detector.find_in("heron") == set()


class LeakDetector:
    def __init__(self, words: list[str]) -> None:
        self._words = {normalize(word) for word in words}

    def find_in(self, text: str) -> set[str]:
        normalized = normalize(text)
        return {word for word in self._words if word in normalized}


def normalize(text: str) -> str:
    """Normalize case and hyphens."""
    return text.lower().replace("-", "")


_GENERATED_VALUES = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(?:Z|\+00:00)|commit_no\\\": [0-9]+"
)


def comparable_response(
    response: httpx.Response, words: Words, replacements: Words
) -> tuple[int, list[tuple[str, str]], str]:
    """Return the response with the words replaced; ids and times of created entities are masked."""
    ignored = ("x-request-id", "date", *(("content-length",) if response.is_success else ()))
    headers = [(name, value) for name, value in response.headers.multi_items() if name not in ignored]
    text = json.dumps([headers, response.text])
    for name, word in words.items():
        # A dataset name has two parts.
        for part, replacement in zip(word.split("."), replacements[name].split("."), strict=True):
            text = text.replace(part, replacement)
    if response.is_success:
        text = _GENERATED_VALUES.sub("…", text)
    headers, body = json.loads(text)
    return response.status_code, headers, body


def unknown_words() -> Words:
    schema = str(uuid4())
    ids = {name: str(uuid4()) for name in ("dataset_id", "pipeline_id", "run_id", "query_id")}
    ids |= {"schema_id": schema, "gts_id": f"{gts.QUERY_RETURNS}{schema}"}
    return {name: unused for name, (_, unused) in SHARED_WORDS.items()} | ids


def per_request_words(turn: int, words: Words) -> Words:
    """Return the words that differ in each request: its number and an expired token."""
    yesterday, tenant = datetime.now(UTC) - timedelta(days=1), UUID(words["tenant"])
    expired_token = mint(SECRET, tenant=tenant, user=words["user"], roles=[Role.ADMIN.claim], ttl=HOUR, now=yesterday)
    return {"turn": f"{turn}", "expired": expired_token}


@contextmanager
def captured_logs() -> Iterator[dict[str, list[str]]]:
    """Collect the log lines of this process by request id; complete on exit."""
    lines, stream = defaultdict[str, list[str]](list), io.StringIO()
    handler, root = logging.StreamHandler(stream), logging.getLogger()
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: not record.name.startswith("http"))  # the client is in this process too
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    for line in stream.getvalue().splitlines():
        lines[json.loads(line).get("request_id", "")].append(line)
