"""Compare the Accept header of a request with the media types that its route declares."""

from collections.abc import Sequence

from fastapi import Request

from penstock.rest.requests import media_types
from penstock.rest.requests.bodies import CallerDep


async def require_acceptable(request: Request, _caller: CallerDep) -> None:
    """Reject an Accept header that allows no media type of the response; a dependency of routes that need a caller.

    Raises:
        Invalid: the route produces none of the accepted media types
    """
    if offers := negotiated_types(request.scope["route"].responses):
        negotiate_type(request, offers)


def negotiate_type(request: Request, offers: Sequence[str]) -> str:
    """Return the offered media type that the Accept header prefers. Several header lines are one list.

    Raises:
        Invalid: the header accepts none of the offers
    """
    return media_types.negotiate(",".join(request.headers.getlist("accept")) or None, offers)


def negotiated_types(responses: dict[int | str, dict[str, object]]) -> list[str]:
    """Return the media types that a client may accept, from the declared responses of a route.

    A number as text is not negotiated (OData 4.01 part 1, 11.2.10). JSON of a special type is also JSON.
    """
    offers = list[str]()
    for status, response in responses.items():
        content = response.get("content")
        if str(status).startswith("2") and isinstance(content, dict):
            offers += [offer for offer in content if offer not in (*offers, media_types.TEXT)]
    if any(media_types.is_json(offer) for offer in offers) and media_types.JSON not in offers:
        offers.append(media_types.JSON)
    return offers
