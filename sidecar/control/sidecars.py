"""`GET /integration/sidecars`: the live sidecars of the store, all of which a trainer's pause has to reach."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sidecar.replicas.claims import Claims


@dataclass(frozen=True, slots=True)
class SidecarRoutes:
    """Any replica knows all of them."""

    claims: Claims

    def routes(self) -> list[Route]:
        """All routes."""
        return [Route("/integration/sidecars", self.sidecars, methods=["GET"])]

    async def sidecars(self, request: Request) -> Response:
        """Those whose lease lasts. `expires_at`: Unix seconds of the store's clock; `self` is the one asked."""
        live = await self.claims.live()
        body = {"self": self.claims.sidecar_id, "sidecars": [asdict(lease) for lease in live]}
        return Response(orjson.dumps(body), media_type="application/json")
