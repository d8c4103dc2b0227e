"""Resolve the table that a call writes to, inside or outside a transaction."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.caller import Role
from penstock.core.dataset.snapshot import Snapshot
from penstock.errors import Unsupported
from penstock.flight import tables
from penstock.flight.commands import TableName
from penstock.flight.interceptor import FlightCall
from penstock.flight.serial_executor import SerialExecutor
from penstock.service.datasets import row_edits
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.streaming_inserts import InsertService
from penstock.service.datasets.write import read_only_error
from penstock.service.transactions.client import ClientTransactions, TransactionOperation


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """A write inside a transaction: the operation, and the table as the transaction sees it."""

    operation: TransactionOperation
    overlay: DatasetOverlay

    @property
    def staging(self) -> tuple[StagingArea, DatasetOverlay]:
        return self.operation.stage, self.overlay


@dataclass(frozen=True, slots=True)
class WriteTarget:
    snapshot: Snapshot
    within: OpenOperation | None = None  # None: the write is committed on its own

    @property
    def schema(self) -> pa.Schema:
        return self.within.overlay.schema if self.within else self.snapshot.schema


class WriteScope:
    """The block in which one call writes. Its blocking steps run one at a time."""

    def __init__(self, call: FlightCall, inserts: InsertService, serial: SerialExecutor) -> None:
        self.call, self.serial = call, serial
        self._inserts = inserts
        self._operation: TransactionOperation | None = None
        self._resolved: tuple[TableName, str] | None = None

    @classmethod
    @asynccontextmanager
    async def enter(
        cls, call: FlightCall, inserts: InsertService, transactions: ClientTransactions
    ) -> AsyncIterator["WriteScope"]:
        """Enter the call's transaction, if it names one. Every error in the block, also of a bad request, aborts it."""
        scope = cls(call, inserts, SerialExecutor(call))
        block: AbstractAsyncContextManager[TransactionOperation | None] = nullcontext()
        if call.transaction is not None:
            block = scope.serial.enter_context(transactions.operation(call.caller, call.transaction))
        async with block as scope._operation:
            try:
                yield scope
            except Unsupported as error:
                if scope._resolved and error.reason == "read_only":
                    raise tables.read_only_error(*scope._resolved, error) from None
                raise

    async def resolve(self, table: TableName, verb: str) -> WriteTarget:
        """Return the target table.

        Args:
            table: its name
            verb: INSERT, UPDATE or DELETE

        Raises:
            Forbidden: the caller may not write
            NotFound: the schema or the table does not exist
            Unsupported: the table does not support the verb
        """
        self.call.caller.require(Role.DEVELOPER)
        self._resolved = table, verb
        if self._operation is None:
            target = WriteTarget(await self.call.run(self._load_snapshot, table))
        else:
            overlay = await self.serial.run(self._load_overlay, self._operation, table)
            target = WriteTarget(overlay.base, OpenOperation(self._operation, overlay))
        if target.snapshot.read_only:
            raise read_only_error(target.snapshot)
        row_edits.check_supported(target.snapshot, verb)
        return target

    def _load_snapshot(self, table: TableName) -> Snapshot:
        with tables.translate_not_found(self._inserts.ws, self.call.caller, table):
            return self._inserts.latest_snapshot(self.call.caller, tables.dataset_name(table))

    def _load_overlay(self, operation: TransactionOperation, table: TableName) -> DatasetOverlay:
        with tables.translate_not_found(self._inserts.ws, self.call.caller, table):
            return operation.overlay(tables.dataset_name(table))
