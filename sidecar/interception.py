"""The interceptor as the sidecar's settings describe it. mitmproxy is imported only where it is used (0.5 s)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.config import Settings, SettingsError
from sidecar.intercept.hosts import parse_hosts
from sidecar.intercept.spec import parse_specs

if TYPE_CHECKING:
    from sidecar.intercept.interceptor import Interceptor


class Interception:
    """`gateway` is where intercepted calls go; `secret` proves to it that they came from here."""

    def __init__(self, settings: Settings, gateway: tuple[str, int], secret: str) -> None:
        """Raises `SettingsError` for a bad --intercept or --intercept-hosts."""
        try:
            self._specs = parse_specs(settings.intercept)
            self._hosts = parse_hosts(settings.intercept_hosts)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self._settings = settings
        self._gateway = gateway
        self._secret = secret
        self._interceptor: Interceptor | None = None

    @property
    def problem(self) -> str | None:
        """Why agents are not intercepted, or None."""
        return self._interceptor.reason if self._interceptor is not None else "the interceptor is not started"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The proxy's listeners."""
        return self._interceptor.addresses if self._interceptor is not None else []

    @property
    def bundle(self) -> Path:
        """Certificates for agents: the public roots and our CA."""
        assert self._interceptor is not None, "start() comes first"
        return self._interceptor.authority.bundle

    async def start(self) -> None:
        """Open the listeners; the CA is made on first use. Raises the interceptor's errors."""
        from sidecar.intercept.interceptor import Interceptor

        assert self._settings.ca_dir is not None
        self._interceptor = Interceptor(
            self._specs,
            self._hosts,
            gateway_host=self._gateway[0],
            gateway_port=self._gateway[1],
            ca_dir=self._settings.ca_dir,
            secret=self._secret,
            body_limit=self._settings.max_body,
        )
        await self._interceptor.start()

    async def stop(self) -> None:
        """Close the listeners and what is open through them."""
        if self._interceptor is not None:
            await self._interceptor.stop()
