"""Check idempotency keys and find the receipts of repeated requests."""

import re
from uuid import uuid4

from penstock.catalog import receipts
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import (
    GENERATED_KEY_PREFIX,
    Change,
    Receipt,
    fingerprint,
    mark_replayed,
)
from penstock.errors import Invalid
from penstock.service.workspace import Workspace

MAX_KEY_LENGTH = 200
_GENERATED_KEY = re.compile(re.escape(GENERATED_KEY_PREFIX) + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def check_idempotency_key(key: str | None) -> str:
    """Return the idempotency key of a request: the caller's own, or a generated one.

    Raises:
        Invalid: the key is empty, too long or not printable, or has the prefix of generated keys
    """
    if key is None:
        return f"{GENERATED_KEY_PREFIX}{uuid4()}"
    if not 0 < len(key) <= MAX_KEY_LENGTH or not key.isprintable():
        raise Invalid("bad_idempotency_key.format", {"max_length": MAX_KEY_LENGTH})
    if key.startswith(GENERATED_KEY_PREFIX) and not _GENERATED_KEY.fullmatch(
        key
    ):  # a key that a receipt reported may be sent again
        raise Invalid("bad_idempotency_key.generated_prefix", {"prefix": GENERATED_KEY_PREFIX})
    return key


def find_replay(ws: Workspace, caller: Caller, change: Change, key: str) -> Receipt | None:
    """Return the receipt of an earlier commit of the same request, or None.

    Raises:
        AlreadyExists: the key was used for another request
    """
    caller.require(Role.DEVELOPER)
    receipt = receipts.find_receipt(ws.db, caller, key, fingerprint((change,)))
    return receipt and mark_replayed(receipt)
