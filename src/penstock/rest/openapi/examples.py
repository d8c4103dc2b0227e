"""What requests and answers look like, for the documents."""

from penstock.rest.requests import media_types as media
from penstock.rest.openapi import schemas as shapes
from penstock.rest.openapi.document import header, query

KEY = header(
    "idempotency-key", "The same request, sent again with this key, happens once.", example="import-2026-01-31"
)
VERSION = query("version", "That version; the newest unless given.", kind=shapes.COUNT, example=3)
TOP = query("$top", "How many at most.", kind=shapes.COUNT, example=50)
SKIP = query("$skip", "How many to leave out first.", kind=shapes.COUNT, example=0)
PERSON, MOMENT = "5f0c2f2e-8d1c-4e57-a2b4-0d6a1b9c7e11", "2026-01-31T10:30:00.000000Z"
STAMPS = {"created_at": MOMENT, "created_by": PERSON, "updated_at": MOMENT, "updated_by": PERSON}
VERSION_FACTS = {
    "version": 1, "operation": "create", "inserted": 3, "updated": 0, "deleted": 0, "rows": 3, "files": 1,
    "bytes": 1204, "at": "2026-01-31T10:30:00+00:00", "author": "ada", "commit_no": 1, "swept": False,
}  # fmt: skip
COLUMNS = [{"name": "id", "type": "int64", "nullable": False}, {"name": "amount", "type": {"decimal": [12, 2]}, "nullable": True}]  # fmt: skip
DATASET = {
    "id": "0b0f1c8e-5a0e-4c53-9d4f-3f6f0a3f1b2c", "name": "shop.orders", "schema_name": "shop", "table_name": "orders",
    "row_ids": True, "read_only": False,
    "created_at": "2026-01-31T10:30:00+00:00", "schema": COLUMNS, **VERSION_FACTS,
}  # fmt: skip
RECEIPT = {
    "key": "import-2026-01-31", "commit_no": 2, "at": "2026-01-31T10:31:00+00:00", "replayed": False,
    "written": [
        {"dataset": DATASET["id"], "name": "shop.orders", "version": 2, "operation": "append", "rows": 5,
         "inserted": 2, "updated": 0, "deleted": 0, "first_row_id": 4}
    ],
}  # fmt: skip
_ROWS_AS = {"csv": "id,amount\n1,12.50\n", "jsonl": '{"id": 1, "amount": 12.50}\n'}  # the others are no text
SENT_ROWS = {
    kind: {"schema": shapes.BYTES, **({"example": _ROWS_AS[each]} if each in _ROWS_AS else {})}
    for kind, each in media.FORMATS.items()
}
