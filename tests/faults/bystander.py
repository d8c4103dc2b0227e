"""Ordinary requests of another tenant: every request must succeed with the correct response during an attack."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
import pyarrow as pa
import pyarrow.flight as fl

from faults.attacks import token
from faults.overload_server import TIMEOUT_SECONDS, OverloadServer
from penstock.core.caller import Role
from penstock.core.registry import gts

TENANT = UUID("77777777-7777-7777-7777-777777777777")
_ROWS = pa.table({"id": [1, 2, 3], "word": ["one", "two", "three"]})


class Bystander:
    """One user with a schema, a dataset and a table."""

    def __init__(self, server: OverloadServer) -> None:
        self._token = token(TENANT, "ada", Role.ADMIN)
        headers = {"authorization": f"Bearer {self._token}"}
        self._http = httpx.Client(
            base_url=f"http://{server.http}",
            headers=headers,
            timeout=TIMEOUT_SECONDS,
            limits=httpx.Limits(max_keepalive_connections=0),  # the server closes idle connections
        )
        self._flight = fl.connect(f"grpc://{server.flight}")
        self._options = fl.FlightCallOptions(
            timeout=TIMEOUT_SECONDS, headers=[(b"authorization", f"Bearer {self._token}".encode())]
        )
        self._inserted, self._revision = 0, 1

    def prepare(self) -> None:
        """Create the entities that the work reads and changes."""
        fields = [{"name": "id", "type": "number"}, {"name": "word", "type": "string"}]
        self._schema = {"name": "orders", "type_id": gts.QUERY_RETURNS, "fields": fields}
        self._schema_id = self._ask("POST", "/gts", 201, json=self._schema).json()["id"]
        for name in ("orders", "inserts"):
            body = b"id,word\n1,one\n2,two\n3,three\n"
            self._ask("POST", f"/datasets?name=shop.{name}", 201, content=body, headers={"content-type": "text/csv"})

    def close(self) -> None:
        self._http.close()
        self._flight.close()

    def work(self) -> dict[str, Callable[[], None]]:
        """Return one request of each kind. Each fails if its answer is wrong."""
        return {
            "health": self._check_health,
            "readiness": self._check_readiness,
            "registry read": self._read_schema,
            "search": self._search,
            "PUT": self._replace_schema,
            "dataset read": self._read_rows,
            "query": self._query,
            "Flight insert": self._insert,
            "Flight read": self._get,
        }

    def _check_health(self) -> None:
        assert self._ask("GET", "/healthz").json() == {"status": "up"}

    def _check_readiness(self) -> None:
        assert self._ask("GET", "/readyz").json()["status"] == "ready"

    def _read_schema(self) -> None:
        body = self._ask("GET", f"/gts/{self._schema_id}").json()
        assert (body["name"], body["version"]) == ("orders", self._revision)

    def _search(self) -> None:
        page = self._ask("GET", "/gts", params={"$filter": "fields/any(f: f/name eq 'word')"}).json()
        assert [entry["id"] for entry in page["value"]] == [self._schema_id]

    def _replace_schema(self) -> None:
        body = {**self._schema, "description": f"revision {self._revision + 1}", "version": self._revision}
        response = self._ask("PUT", f"/gts/{self._schema_id}", json=body).json()
        self._revision += 1
        assert (response["version"], response["description"]) == (self._revision, f"revision {self._revision}")

    def _read_rows(self) -> None:
        assert self._ask("GET", "/datasets/shop.orders/rows").json()["value"] == _ROWS.to_pylist()

    def _query(self) -> None:
        body = {"sql": "SELECT sum(id) AS total FROM shop.orders"}
        assert self._ask("POST", "/queries/preview", json=body).json()["value"] == [{"total": 6}]

    def _insert(self) -> None:
        command = {"operation": "insert", "schema_name": "shop", "table_name": "inserts"}
        descriptor = fl.FlightDescriptor.for_command(json.dumps(command))
        row = _ROWS.slice(self._inserted % 3, 1)
        writer, reader = self._flight.do_put(descriptor, row.schema, self._options)
        with writer:
            writer.write_table(row)
            writer.done_writing()
            assert reader.read() is not None
        self._inserted += 1

    def _get(self) -> None:
        ticket = fl.Ticket(json.dumps({"schema_name": "shop", "table_name": "inserts", "filter": "id > 0"}))
        table = self._flight.do_get(ticket, self._options).read_all()
        assert table.num_rows == 3 + self._inserted

    def _ask(self, method: str, path: str, code: int = 200, **options: Any) -> httpx.Response:
        response = self._http.request(method, path, **options)
        assert response.status_code == code, (method, path, response.status_code, response.text[:500])
        return response
