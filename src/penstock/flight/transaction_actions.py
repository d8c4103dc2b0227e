"""DoAction handlers that create, commit and roll back transactions; other calls name one in a header."""

from collections.abc import Mapping
from uuid import UUID

from penstock.core.caller import Role
from penstock.flight import commands
from penstock.flight.interceptor import FlightCall
from penstock.flight.table_actions import ActionHandler, encode_response
from penstock.service.transactions.client import ClientTransactions

_BODY = 'Body: {"transaction_id"}'


def build_actions(transactions: ClientTransactions) -> Mapping[str, ActionHandler]:
    """Return the action handlers for a set of transactions."""

    async def create(call: FlightCall, body: bytes) -> bytes:
        command = await call.parse(len(body), commands.parse_create_transaction, body)
        transaction_id = await call.run(transactions.create, call.caller, command.auto_commit)
        return encode_response(status="success", transaction_id=str(transaction_id))

    async def commit(call: FlightCall, body: bytes) -> bytes:
        transaction_id = await _parse_id(call, body, "commit_transaction")
        await call.run(transactions.commit, call.caller, transaction_id)
        return encode_response(status="success", transaction_id=str(transaction_id))

    async def roll_back(call: FlightCall, body: bytes) -> bytes:
        transaction_id = await _parse_id(call, body, "rollback_transaction")
        await call.run(transactions.rollback, call.caller, transaction_id)
        return encode_response(status="success", transaction_id=str(transaction_id))

    async def get_status(call: FlightCall, body: bytes) -> bytes:
        transaction_id = await _parse_id(call, body, "get_transaction_status")
        state = await call.run(transactions.status, call.caller, transaction_id)
        return encode_response(status="success", transaction_id=str(transaction_id), transaction_status=state.value)

    return {
        "create_transaction": ActionHandler(
            'Create a transaction. Body: none, or {"auto_commit"}', Role.VIEWER, create
        ),
        "commit_transaction": ActionHandler(
            f"Commit all writes of a transaction atomically. {_BODY}", Role.VIEWER, commit
        ),
        "rollback_transaction": ActionHandler(f"Discard the writes of a transaction. {_BODY}", Role.VIEWER, roll_back),
        "get_transaction_status": ActionHandler(
            f"Return the state of a transaction: active, committed, aborted or expired. {_BODY}",
            Role.VIEWER,
            get_status,
        ),
    }


async def _parse_id(call: FlightCall, body: bytes, action: str) -> UUID:
    return (await call.parse(len(body), commands.parse_transaction_ref, body, action)).transaction_id
