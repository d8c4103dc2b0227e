"""Media types of request and response bodies, and content negotiation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import Response

from penstock.errors import Invalid
from penstock.rest.problems import as_json, as_json_text, encode_json

JSON = "application/json"
XML = "application/xml"
TEXT = "text/plain"
PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"

# File formats of uploaded rows by media type.
FILE_FORMATS = {
    PARQUET: "parquet",
    "application/x-parquet": "parquet",
    "text/csv": "csv",
    ARROW: "arrow",
    "application/vnd.apache.arrow.file": "arrow",
    "application/x-ndjson": "jsonl",
    "application/jsonl": "jsonl",
}


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(as_json(value), status, headers, JSON)


def spliced_json_response(
    head: Mapping[str, Any], name: str, items: Iterable[str], tail: Mapping[str, Any], headers: Mapping[str, str]
) -> Response:
    """Return a JSON object with the members of `head`, a list of items that are serialized already, and `tail`."""
    members = [as_json_text(dict(head))[1:-1], f'"{name}": [{", ".join(items)}]', as_json_text(dict(tail))[1:-1]]
    return Response(encode_json(f"{{{', '.join(filter(None, members))}}}"), 200, headers, JSON)


def prefixed_json_response(head: Mapping[str, Any], text: str, status: int, headers: Mapping[str, str]) -> Response:
    """Return a JSON object with the members of `head`, followed by those of a serialized object."""
    members = [as_json_text(dict(head))[1:-1], text[1:-1]]
    return Response(encode_json(f"{{{', '.join(filter(None, members))}}}"), status, headers, JSON)


def content_type(header: str | None) -> str:
    """Return the media type of a Content-Type header without its parameters."""
    return (header or "").partition(";")[0].strip().lower()


def is_json(header: str | None) -> bool:
    """Return whether a Content-Type header names JSON or a `+json` type."""
    media_type = content_type(header)
    return media_type == JSON or media_type.endswith("+json")


def require_content_type(header: str | None, accepted: Sequence[str]) -> str:
    """Return the media type of a Content-Type header.

    Raises:
        Invalid: it is missing or not one of the accepted types
    """
    media_type = content_type(header)
    if media_type not in accepted:
        if not media_type:
            raise Invalid("unsupported_media_type.missing", accepted=list(accepted))
        raise Invalid("unsupported_media_type.unknown", {"media_type": media_type[:80]}, accepted=list(accepted))
    return media_type


def negotiate(accept: str | None, offers: Sequence[str]) -> str:
    """Return the offer with the highest quality in an Accept header; the first one of equals.

    Raises:
        Invalid: the header accepts none of the offers
    """
    ranges = [_parse_range(part) for part in (accept or "*/*").split(",") if part.strip()]
    ranked = [(_quality(offer, ranges), -index) for index, offer in enumerate(offers)]
    quality, index = max(ranked)
    if quality <= 0:
        raise Invalid("not_acceptable", offered=list(offers))
    return offers[-index]


def _parse_range(part: str) -> tuple[str, float]:
    media_range, *parameters = (piece.strip().lower() for piece in part.split(";"))
    text = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
    try:
        quality = float(text)
    except ValueError:
        quality = 0.0
    return media_range, quality if 0 <= quality <= 1 else 0.0


def _quality(offer: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Return the quality of the most specific range that matches the offer."""
    for media_range in (offer, f"{offer.partition('/')[0]}/*", "*/*"):
        if matches := [quality for candidate, quality in ranges if candidate == media_range]:
            return max(matches)
    return 0.0
