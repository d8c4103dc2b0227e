"""Which media type is meant: of what was sent, and of what is wanted back. Most of it is JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Response

from penstock.errors import Invalid
from penstock.rest.problems import as_json

JSON = "application/json"
PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"

# What rows may come as, and the format that it is.
FORMATS = {
    PARQUET: "parquet",
    "application/x-parquet": "parquet",
    "text/csv": "csv",
    ARROW: "arrow",
    "application/vnd.apache.arrow.file": "arrow",
    "application/x-ndjson": "jsonl",
    "application/jsonl": "jsonl",
}


def json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(as_json(value), status, headers, JSON)


def sent(header: str | None) -> str:
    """The type in a content-type header, without its parameters."""
    return (header or "").partition(";")[0].strip().lower()


def is_json(header: str | None) -> bool:
    kind = sent(header)
    return kind == JSON or kind.endswith("+json")


def assert_sent(header: str | None, known: Sequence[str]) -> str:
    kind = sent(header)
    if kind not in known:
        said = f"content-type {kind[:80]!r} is not served here" if kind else "there is no content-type"
        raise Invalid("unsupported_media_type", f"{said}; send one of {', '.join(known)}", accepted=list(known))
    return kind


def wanted(accept: str | None, offers: Sequence[str]) -> str:
    """The offer that an accept header likes best; of equals the first."""
    ranges = [_range(part) for part in (accept or "*/*").split(",") if part.strip()]
    liked = [(_quality(offer, ranges), -place) for place, offer in enumerate(offers)]
    quality, place = max(liked)
    if quality <= 0:
        raise Invalid("not_acceptable", f"this can be had as {', '.join(offers)}", offered=list(offers))
    return offers[-place]


def _range(part: str) -> tuple[str, float]:
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    told = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    try:
        quality = float(told)
    except ValueError:
        quality = 0.0
    return kind, quality if 0 <= quality <= 1 else 0.0


def _quality(offer: str, ranges: Sequence[tuple[str, float]]) -> float:
    """The most exact range that holds the offer decides."""
    for wide in (offer, f"{offer.partition('/')[0]}/*", "*/*"):
        if found := [quality for kind, quality in ranges if kind == wide]:
            return max(found)
    return 0.0
