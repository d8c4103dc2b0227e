"""The Flight service: a server with its tables, streaming inserts and client transactions."""

from datetime import timedelta
from uuid import UUID

import pyarrow as pa

from penstock.core.caller import Caller
from penstock.errors import NotFound
from penstock.flight import read_handlers, tables, transaction_actions
from penstock.flight.commands import TableTicket
from penstock.flight.context import FlightContext
from penstock.flight.read_handlers import BATCH_ROWS
from penstock.flight.server import FlightServer, Tls
from penstock.flight.table_actions import ACTIONS
from penstock.flight.write_handlers import WriteHandlers
from penstock.service.datasets import read
from penstock.service.datasets.group_edits import EditService
from penstock.service.datasets.read import ScanOptions
from penstock.service.datasets.streaming_inserts import InsertService
from penstock.service.transactions.client import TIME_TO_LIVE, ClientTransactions


class FlightService:
    EXPIRY_INTERVAL_SECONDS = 5.0  # between two calls of `expire_transactions`

    def __init__(
        self,
        context: FlightContext,
        host: str,
        port: int,
        tls: Tls | None = None,
        *,
        time_to_live: timedelta = TIME_TO_LIVE,
        auto_commit: bool = False,
    ) -> None:
        self._ws = context.workspace
        self._inserts = InsertService(context.workspace)
        self._transactions = ClientTransactions(context.workspace, ttl=time_to_live, auto_commit=auto_commit)
        self._edits = EditService(context.workspace)
        writes = WriteHandlers(self._inserts, self._edits, self._transactions)
        self._server = FlightServer(
            context,
            host,
            port,
            tls,
            put=writes.put,
            actions={**writes.actions, **transaction_actions.build_actions(self._transactions), **ACTIONS},
            open_reader=self._open_reader,
        )

    @property
    def address(self) -> str:
        return self._server.address

    def start(self) -> int:
        """Listen and return the port."""
        return self._server.start()

    def expire_transactions(self) -> None:
        """End idle transactions; call it every EXPIRY_INTERVAL_SECONDS."""
        self._transactions.expire_idle()

    def drain(self) -> None:
        """Reject new calls without waiting for the active ones."""
        self._server.drain()

    def stop(self) -> None:
        """Let active calls finish within the drain time, then abort the open transactions."""
        self._server.stop()
        self._inserts.close()
        self._edits.close()
        self._transactions.close()

    def _open_reader(
        self, caller: Caller, ticket: TableTicket, transaction: UUID | None, read_ahead: bool
    ) -> pa.RecordBatchReader:
        if transaction is None:
            return read_handlers.open_table_reader(self._ws, caller, ticket, read_ahead=read_ahead)
        with tables.translate_not_found(self._ws, caller, ticket):
            overlay = self._transactions.snapshot_for_read(caller, transaction, tables.dataset_name(ticket))
        newest = overlay.base.version.number
        if ticket.version is None:
            options = ScanOptions(ticket.columns, ticket.filter, ticket.rowid, BATCH_ROWS, read_ahead)
            return read.scan_overlay(self._ws, caller, overlay, options)
        if ticket.version > newest:
            raise NotFound(
                "version_not_found.transaction",
                {"version": ticket.version, "newest": newest},
                requested_version=ticket.version,
            )
        return read_handlers.open_table_reader(self._ws, caller, ticket, read_ahead=read_ahead)
