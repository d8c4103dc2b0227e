"""A stranger who knows all of another tenant's ids and names learns nothing by them, and changes nothing.

What an answer may repeat is what the very request said: in its path (the problem's `instance` and sentence), in its query
and its body (what was wrong there, or what was made of it), and in three headers: x-request-id, content-type and
idempotency-key. Tokens, conditions, cookies and every other header are never repeated. A log line may hold the path and
the request id, and nothing else that was sent; a line about a run names the run and its tenant.
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
from rest.rest_client import HOUR, OTHER, SECRET, TENANT, bearer, check_response, serve, token

# What only the owner knows. The stranger never sends it, so nothing may ever show it.
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
# Words that the other tenant knows, each with an unused word of the same length.
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
_NEW = {"name": "<schema_name>", "type_id": gts.QUERY_RETURNS, "fields": _FIELDS}
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
    _NEW,
    {"entity": {**_NEW, "description": "<description>"}},
    {**_NEW, "id": "<schema_id>", "gts_id": "<gts_id>", "tenant_id": "<tenant>", "version": 1},
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
    *((kind, json.dumps(body)) for body in JSON_BODIES
      for kind in ("application/json", "application/merge-patch+json", "application/json-patch+json")),
    ("text/csv", "<column>,<field>\n<value>,1\n"),
    ("application/x-ndjson", '{"<column>": "<value>"}\n'),
    ("text/<field>", "<value>"),
    ("application/json", '{"<field>": <value>}'),
]  # fmt: skip
FITTING = {  # valid bodies by path
    "/gts": _NEW,
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
REPEATED = ("x-request-id", "content-type", "idempotency-key")
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
    def by(cls, chance: Random) -> "RequestTemplate":
        method, path = chance.choice(METHODS), chance.choice(PATHS)
        headers = dict(chance.sample(HEADERS, chance.choice([0, 0, 1, 2])))
        query = dict(chance.sample(QUERIES, chance.choice([0, 1, 1, 2])))
        content = None
        if method in ("POST", "PUT", "PATCH"):
            headers["content-type"], content = chance.choice(BODIES)
            if path in FITTING and chance.choice([True, False]):
                headers["content-type"], content, query = "application/json", json.dumps(FITTING[path]), {}
        return cls(
            method,
            re.sub("@", lambda _: f"<{chance.choice(NAMES)}>", path),
            tuple(query.items()),
            headers,
            content,
            chance.choice([Role.ADMIN, Role.ADMIN, Role.DEVELOPER, Role.VIEWER]),
        )

    def filled(self, words: Words) -> "RequestTemplate":
        def fill(text: str) -> str:
            return re.sub("<([a-z_]+)>", lambda gap: words[gap[1]], text)

        query = tuple((fill(name), fill(value)) for name, value in self.query)
        headers = {name: fill(value) for name, value in self.headers.items()}
        content = None if self.content is None else fill(self.content)
        return RequestTemplate(self.method, fill(self.path), query, headers, content, self.role)

    def send(self, http: httpx.Client) -> httpx.Response:
        headers = bearer(token(self.role, OTHER, "mallory")) | self.headers
        return http.request(self.method, self.path, params=self.query or None, headers=headers, content=self.content)

    def may_be_repeated(self) -> str:
        repeated = [self.headers.get(name, "") for name in REPEATED]
        return plain(" ".join([unquote(self.path), *map(" ".join, self.query), self.content or "", *repeated]))

    def may_be_logged(self) -> str:
        return plain(f"{unquote(self.path)} {self.headers.get('x-request-id', '')}")


@dataclass
class Owner:
    """The tenant whose data must not be visible to others."""

    http: httpx.Client
    words: Words = field(default_factory=dict)
    requests: set[str] = field(default_factory=set)

    def settle(self) -> None:
        shared = {name: mine for name, (mine, _) in SHARED_WORDS.items()}
        first = {
            "name": shared["schema_name"],
            "type_id": gts.QUERY_RETURNS,
            "description": shared["description"],
            "metadata": {"note": SECRETS["metadata"]},
            "fields": [{"name": shared["field"], "type": "string", "description": SECRETS["field description"]}],
        }
        schema = self._made("/gts", json=first)
        self._request("PUT", f"/gts/{schema}", json={**first, "version": 1, "metadata": {SECRETS["metadata"]: 1}})
        second = self._made("/gts", json={**first, "name": "Second", "description": SECRETS["second description"]})
        move = {"to": "DEPRECATED", "version": 1, "reason": SECRETS["reason"]}
        self._request("POST", f"/gts/{second}/transitions", json=move)
        rows = f"{shared['column']},{SECRETS['second column']}\n{shared['value']},{SECRETS['cell']}\n"
        sent = {"content": rows, "headers": {"content-type": "text/csv", "idempotency-key": shared["key"]}}
        dataset = self._made("/datasets", params={"name": shared["dataset"]}, **sent)
        sql = (
            f"SELECT {shared['column']} AS {shared['field']}, 1 AS {SECRETS['column of SQL']} FROM {shared['dataset']}"
        )
        draft = {"name": shared["query_name"], "description": SECRETS["query description"], "sql": sql}
        query = self._made("/queries", json={**draft, "returns_schema_id": schema})
        pipeline = self._made("/pipelines", json=self._pipeline(dataset))
        run = self._made(f"/pipelines/{pipeline}/runs")
        ids = {"schema_id": schema, "gts_id": f"{gts.QUERY_RETURNS}{schema}", "dataset_id": dataset}
        self.words = {**shared, **ids, "pipeline_id": pipeline, "run_id": run, "query_id": query}
        while not self._request("GET", f"/runs/{run}").json()["ended_at"]:
            pass

    def everything(self) -> Any:
        """Return all entities that the owner can read."""
        paths = ("/gts", "/datasets", "/pipelines", "/runs", "/queries")
        found = [self._request("GET", f"{path}?$count=true").json() for path in paths]
        for schema in found[0]["value"]:
            here = f"/gts/{schema['id']}"
            found += [
                self._request("GET", f"{here}/{tail}").json() for tail in ("versions", "references", "json-schema")
            ]
        for dataset in found[1]["value"]:
            here = f"/datasets/{dataset['id']}"
            found += [self._request("GET", f"{here}/{tail}").json() for tail in ("rows", "history", "schema")]
        for query in found[4]["value"]:
            here = f"/queries/{query['id']}"
            found += [self._request("GET", f"{here}/{tail}").json() for tail in ("versions", "results")]
        return found

    def _pipeline(self, dataset: str) -> Any:
        """Return a pipeline whose run fails with an unknown column, so that the run record contains the selector."""
        source = {"dataset_id": dataset}
        selecting = {"source": source, "source_selector": f"{SECRETS['selector']} = 1"}
        operation = {"type": "append", "alias": SECRETS["alias"], "parameters": selecting}
        return {"name": SHARED_WORDS["pipeline_name"][0], "working": source, "operations": [operation]}

    def _made(self, path: str, **options: Any) -> str:
        made: str = self._request("POST", path, **options).json()["id"]
        return made

    def _request(self, method: str, path: str, headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:
        own = bearer(token(Role.ADMIN, TENANT, SHARED_WORDS["user"][0]))
        answer = self.http.request(method, path, headers={**own, **(headers or {})}, **options)
        assert answer.is_success, answer.text
        self.requests.add(answer.headers["x-request-id"])
        return answer


def test_other_tenant_reads_and_changes_nothing(app: FastAPI, edge: RestContext, soak: bool) -> None:
    chance, statuses, sent = Random(20261116), Counter[int](), dict[str, RequestTemplate]()
    with listening() as log, serve(app, edge.limits) as address, httpx.Client(base_url=address, timeout=60) as http:
        owner, mallory = Owner(http), bearer(token(Role.ADMIN, OTHER, "mallory"))
        owner.settle()
        mine = {**_NEW, "name": "Mine", "fields": [{"name": "mine", "type": "string"}]}
        assert http.post("/gts", json=mine, headers=mallory).status_code == 201
        before = owner.everything()
        words = Lookout([*owner.words.values(), *SECRETS.values()])
        assert words.seen_in(json.dumps(before)) >= {plain(word) for word in SECRETS.values()}  # they can be found

        unused_words = unknown_words()
        for turn in range(1500 if soak else 400):
            template, pair = RequestTemplate.by(chance), []
            for substituted in (owner.words, unused_words):
                request = template.filled(substituted | passing(turn, substituted))
                answer = request.send(http)
                check_response(answer)
                assert answer.status_code < 500, (request, answer.text)
                visible = f"{answer.headers.multi_items()} {answer.text}"
                assert not words.seen_in(visible) - words.seen_in(request.may_be_repeated()), (request, visible)
                sent[answer.headers["x-request-id"]] = request
                statuses[answer.status_code] += 1
                pair.append(compared(answer, substituted, unused_words))
                if answer.status_code == 201:  # the entity of the other tenant must not affect the second request
                    assert http.delete(answer.headers["location"], headers=mallory).status_code == 204
            assert pair[0] == pair[1], template

        assert not words.seen_in(http.get("/metrics").text)
        assert owner.everything() == before

    assert sent.keys() <= log.keys()
    own_run = plain(f"{owner.words['run_id']} {TENANT}")
    for request_id in log.keys() - owner.requests:
        may = sent[request_id].may_be_logged() if request_id in sent else ""
        for line in log[request_id]:
            of_run = json.loads(line)["logger"] == "penstock.service.pipelines.run_worker"
            assert not words.seen_in(line) - words.seen_in(own_run if of_run else may), line
    assert all(statuses[code] for code in (200, 201, 400, 401, 403, 404, 405, 415)), statuses


def test_secret_detector_finds_encoded_words() -> None:
    words = Lookout(["Heron-4c1f88", str(TENANT)])
    assert words.seen_in('{"x": "HERON-4C1F88"}') == {"heron4c1f88"}
    assert words.seen_in(TENANT.hex) == {TENANT.hex}
    assert words.seen_in("heron") == set()


class Lookout:
    def __init__(self, words: list[str]) -> None:
        self._words = {plain(word) for word in words}

    def seen_in(self, text: str) -> set[str]:
        there = plain(text)
        return {word for word in self._words if word in there}


def plain(text: str) -> str:
    """Normalize case and hyphens."""
    return text.lower().replace("-", "")


_NEW_EACH_TIME = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(?:Z|\+00:00)|commit_no\\\": [0-9]+"
)


def compared(answer: httpx.Response, words: Words, instead: Words) -> tuple[int, list[tuple[str, str]], str]:
    """Return the response with the words replaced; ids and times of created entities are masked."""
    left_out = ("x-request-id", "date", *(("content-length",) if answer.is_success else ()))
    headers = [(name, value) for name, value in answer.headers.multi_items() if name not in left_out]
    text = json.dumps([headers, answer.text])
    for name, word in words.items():
        for part, other in zip(word.split("."), instead[name].split("."), strict=True):  # both parts of a dataset name
            text = text.replace(part, other)
    if answer.is_success:
        text = _NEW_EACH_TIME.sub("…", text)
    headers, body = json.loads(text)
    return answer.status_code, headers, body


def unknown_words() -> Words:
    schema = str(uuid4())
    ids = {name: str(uuid4()) for name in ("dataset_id", "pipeline_id", "run_id", "query_id")}
    ids |= {"schema_id": schema, "gts_id": f"{gts.QUERY_RETURNS}{schema}"}
    return {name: other for name, (_, other) in SHARED_WORDS.items()} | ids


def passing(turn: int, words: Words) -> Words:
    """Return the words that are new in each request: its number, and an expired token."""
    then, tenant = datetime.now(UTC) - timedelta(days=1), UUID(words["tenant"])
    old = mint(SECRET, tenant=tenant, user=words["user"], roles=[Role.ADMIN.claim], ttl=HOUR, now=then)
    return {"turn": f"{turn}", "expired": old}


@contextmanager
def listening() -> Iterator[dict[str, list[str]]]:
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
