"""Routes of the API documentation: /openapi.json and Swagger UI at /docs, served without other hosts."""

from functools import cache
from importlib import resources
from typing import Any

from fastapi import APIRouter, Request, Response

from penstock.rest.problems import as_json

router = APIRouter(include_in_schema=False)

# The page has no inline script: the policy allows only script files of this server.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Penstock</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon.png">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START_SCRIPT = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#page", deepLinking: true, validatorUrl: null});\n'
_STATIC_FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    state = request.app.state
    if not hasattr(state, "openapi_body"):  # serialized once: the document does not change
        state.openapi_body = as_json(request.app.openapi())
    return Response(state.openapi_body, media_type="application/json")


@router.get("/docs")
async def docs() -> Response:
    return Response(_PAGE, media_type="text/html", headers={"content-security-policy": _CONTENT_SECURITY_POLICY})


@router.get("/docs/start.js")
async def start() -> Response:
    return Response(_START_SCRIPT, media_type="text/javascript")


def _static_file(name: str, media_type: str) -> Any:
    def static_file() -> Response:
        return Response(_content(name), media_type=media_type, headers={"cache-control": "public, max-age=86400"})

    return static_file


@cache
def _content(name: str) -> bytes:
    return (resources.files("fastapi_offline") / "static" / name).read_bytes()


for _name, _media_type in _STATIC_FILES.items():
    router.add_api_route(f"/docs/{_name}", _static_file(_name, _media_type), methods=["GET"])
router.add_api_route("/favicon.ico", _static_file("favicon.png", "image/png"), methods=["GET"])
