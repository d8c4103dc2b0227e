"""The kinds of S3 requests, and listings as XML."""

import re
from enum import StrEnum, auto
from urllib.parse import parse_qs, urlsplit


class Kind(StrEnum):
    """The operation of a request."""

    PUT = auto()
    GET = auto()
    HEAD = auto()
    LIST = auto()
    DELETE = auto()
    DELETE_MANY = auto()
    COPY = auto()
    CREATE_UPLOAD = auto()
    PUT_PART = auto()
    COMPLETE_UPLOAD = auto()
    ABORT_UPLOAD = auto()
    OTHER = auto()  # operations on buckets, their settings and lists of uploads


def kind_of(method: str, target: str, is_copy: bool) -> Kind:
    """Return the kind of a request with a path-style address."""
    url = urlsplit(target)
    query = parse_qs(url.query, keep_blank_values=True)
    has_key = bool(url.path.strip("/").partition("/")[2])
    match method:
        case "GET" if not has_key and not query.keys() & {
            "uploads",
            "location",
            "lifecycle",
            "policy",
            "versioning",
            "acl",
        }:
            return Kind.LIST if url.path.strip("/") else Kind.OTHER
        case "POST" if "delete" in query:
            return Kind.DELETE_MANY
        case "POST" if "uploads" in query:
            return Kind.CREATE_UPLOAD
        case "POST" if "uploadId" in query:
            return Kind.COMPLETE_UPLOAD
        case "DELETE" if "uploadId" in query:
            return Kind.ABORT_UPLOAD
        case "PUT" if has_key and is_copy:
            return Kind.COPY
        case "PUT" if "uploadId" in query:
            return Kind.PUT_PART
        case "GET" | "HEAD" | "PUT" | "DELETE" if has_key:
            return Kind(method.lower())
    return Kind.OTHER


def shorten_listing(listing: bytes) -> bytes:
    """Remove the second half of the entries of a listing, which still says that it is complete."""
    entries = re.findall(rb"<Contents>.*?</Contents>", listing, re.DOTALL)
    for entry in entries[len(entries) // 2 :]:
        listing = listing.replace(entry, b"", 1)
    return re.sub(rb"<KeyCount>\d+</KeyCount>", b"<KeyCount>%d</KeyCount>" % (len(entries) // 2), listing)
