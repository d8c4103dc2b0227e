"""The Flight service as a whole: tables are read and written on one port, at large or in transactions."""

from datetime import timedelta
from uuid import UUID

import pyarrow as pa

from penstock.core.caller import Caller
from penstock.errors import NotFound
from penstock.flight import read_handlers as reads
from penstock.flight import transaction_actions as transactions
from penstock.flight import tables
from penstock.flight.table_actions import ACTIONS
from penstock.flight.commands import TableTicket
from penstock.flight.context import Edge
from penstock.flight.read_handlers import BATCH_ROWS
from penstock.flight.server import FlightServer, Tls
from penstock.flight.write_handlers import Writes
from penstock.service.datasets import read
from penstock.service.datasets.streaming_inserts import Inserts
from penstock.service.datasets.read import Wanted
from penstock.service.transactions.client import TIME_TO_LIVE, Transactions


class FlightService:
    TENDED = 5.0  # seconds between two calls of `tend`

    def __init__(
        self,
        edge: Edge,
        host: str,
        port: int,
        tls: Tls | None = None,
        *,
        time_to_live: timedelta = TIME_TO_LIVE,
        auto_commit: bool = False,
    ) -> None:
        self._ws = edge.workspace
        self._inserts = Inserts(edge.workspace)
        self._transactions = Transactions(edge.workspace, ttl=time_to_live, auto_commit=auto_commit)
        writes = Writes(self._inserts, self._transactions)
        self._server = FlightServer(
            edge,
            host,
            port,
            tls,
            put=writes.put,
            actions={**writes.actions, **transactions.actions(self._transactions), **ACTIONS},
            opened=self._opened,
        )

    @property
    def address(self) -> str:
        return self._server.address

    def start(self) -> int:
        return self._server.start()

    def tend(self) -> None:
        """End transactions that are idle. To be called now and then."""
        self._transactions.expire()

    def drain(self) -> None:
        self._server.drain()

    def stop(self) -> None:
        """Calls under way have a while to end; transactions that are still open are aborted."""
        self._server.stop()
        self._inserts.close()
        self._transactions.close()

    def _opened(
        self, caller: Caller, ticket: TableTicket, transaction: UUID | None, ahead: bool
    ) -> pa.RecordBatchReader:
        if transaction is None:
            return reads.rows(self._ws, caller, ticket, ahead=ahead)
        with tables.missing(self._ws, caller, ticket):
            working = self._transactions.reading(caller, transaction, tables.name(ticket))
        newest = working.base.version.number
        if ticket.version is None:
            wanted = Wanted(ticket.columns, ticket.filter, ticket.rowid, BATCH_ROWS, ahead)
            return read.rows_within(self._ws, working, wanted)
        if ticket.version > newest:
            raise NotFound(
                "version_not_found",
                f"this transaction knows nothing of version {ticket.version}; the newest when it began was {newest}",
                requested_version=ticket.version,
            )
        return reads.rows(self._ws, caller, ticket, ahead=ahead)
