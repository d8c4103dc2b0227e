"""Transactions over Flight: begun, committed and rolled back by actions, and named in the header of other calls."""

from collections.abc import Mapping

from penstock.flight import commands
from penstock.flight.table_actions import Action, answer
from penstock.flight.interceptor import Call
from penstock.service.transactions.client import Transactions

_BODY = 'Body: {"transaction_id"}'


def actions(transactions: Transactions) -> Mapping[str, Action]:
    async def create(call: Call, body: bytes) -> bytes:
        asked = commands.create_transaction(body)
        made = await call.run(transactions.create, call.caller, asked.auto_commit)
        return answer(status="success", transaction_id=str(made))

    async def commit(call: Call, body: bytes) -> bytes:
        asked = commands.transaction_ref(body, "commit_transaction").transaction_id
        await call.run(transactions.commit, call.caller, asked)
        return answer(status="success", transaction_id=str(asked))

    async def roll_back(call: Call, body: bytes) -> bytes:
        asked = commands.transaction_ref(body, "rollback_transaction").transaction_id
        await call.run(transactions.rollback, call.caller, asked)
        return answer(status="success", transaction_id=str(asked))

    async def tell_status(call: Call, body: bytes) -> bytes:
        asked = commands.transaction_ref(body, "get_transaction_status").transaction_id
        state = await call.run(transactions.status, call.caller, asked)
        return answer(status="success", transaction_id=str(asked), transaction_status=state.value)

    return {
        "create_transaction": Action('Begin a transaction. Body: none, or {"auto_commit"}', create),
        "commit_transaction": Action(f"Make its writes visible, all at once. {_BODY}", commit),
        "rollback_transaction": Action(f"Undo its writes. {_BODY}", roll_back),
        "get_transaction_status": Action(f"How it stands: active, committed, aborted, expired. {_BODY}", tell_status),
    }
