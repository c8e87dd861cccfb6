"""``/openapi.json`` and ``/docs``: Swagger UI from the package itself, with no request to anywhere else."""

import gzip
from importlib import resources
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from padserve.http.exchange import header

PAGE = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>padserve</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
START = b"""SwaggerUIBundle({
  dom_id: "#docs", url: "openapi.json", validatorUrl: null, deepLinking: true, tryItOutEnabled: true
});
"""
CONTENT_SECURITY_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
MEDIA_TYPES = {"css": "text/css", "js": "text/javascript"}
ONE_DAY = {"Cache-Control": "private, max-age=86400"}


def make_docs_routes(document: dict[str, Any]) -> list[HTTPRouteHandler]:
    """``document``: the OpenAPI document."""
    encoded = msgspec.json.encode(document)

    @get("/openapi.json")
    async def read_openapi() -> Response[bytes]:
        return Response(encoded, media_type="application/json")

    @get("/docs")
    async def read_docs() -> Response[bytes]:
        return Response(PAGE, media_type="text/html", headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    @get("/docs/{name:str}")
    async def read_asset(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        accepted = header(request.scope, b"accept-encoding") or b""
        return asset_response(name, accepts_gzip=b"gzip" in accepted)

    return [read_openapi, read_docs, read_asset]


def asset_response(name: str, accepts_gzip: bool) -> Response[bytes]:
    """A file that the page loads. Kept compressed on disk. Errors: 404 for any other name."""
    if name == "start.js":
        return Response(START, media_type=MEDIA_TYPES["js"])
    if name not in ("swagger-ui.css", "swagger-ui-bundle.js"):
        raise NotFoundException(f"no file {name!r}")
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]
    content = resources.files("padserve.http").joinpath("assets", f"{name}.gz").read_bytes()
    if accepts_gzip:
        headers = {**ONE_DAY, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(content, media_type=media_type, headers=headers)
    return Response(gzip.decompress(content), media_type=media_type, headers={**ONE_DAY, "Vary": "Accept-Encoding"})
