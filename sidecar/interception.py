"""The interceptor as the sidecar's settings describe it. mitmproxy is imported only where it is used (0.5 s)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.config import Settings, SettingsError
from sidecar.intercept.hosts import parse_rules
from sidecar.intercept.spec import Mode, parse_specs
from sidecar.sessions.keys import session_key

if TYPE_CHECKING:
    from sidecar.intercept.interceptor import Interceptor


class Interception:
    """`gateway` is where intercepted calls go; `secret` proves to it that they came from here.

    Where calls need a session key, intercepted agents cannot be given one: theirs is added here, that of
    `--session-id`. So nothing that such an agent sends names another session."""

    def __init__(self, settings: Settings, gateway: tuple[str, int], secret: str, session_secret: bytes) -> None:
        """Raises `SettingsError` for a bad --intercept, --intercept-hosts or --intercept-allow."""
        try:
            self._specs = parse_specs(settings.intercept)
            self._rules = parse_rules(settings.intercept_hosts, settings.intercept_allow)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self._settings = settings
        self._gateway = gateway
        self._secret = secret
        named = settings.session_id if settings.data_auth == "session-key" else None
        self._session_key = session_key(named, session_secret) if named is not None else None
        self._interceptor: Interceptor | None = None

    @property
    def problem(self) -> str | None:
        """Why agents are not intercepted, or None."""
        return self._interceptor.reason if self._interceptor is not None else "the interceptor is not started"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The proxy's listeners."""
        return self._interceptor.addresses if self._interceptor is not None else []

    def addresses_of(self, mode: Mode) -> list[tuple[str, int]]:
        """The listeners of one mode."""
        return self._interceptor.addresses_of(mode) if self._interceptor is not None else []

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
            self._rules,
            gateway_host=self._gateway[0],
            gateway_port=self._gateway[1],
            ca_dir=self._settings.ca_dir,
            ca_bundle=self._settings.ca_bundle,
            secret=self._secret,
            body_limit=self._settings.max_body,
            session_key=self._session_key,
        )
        await self._interceptor.start()

    async def stop(self) -> None:
        """Close the listeners and what is open through them."""
        if self._interceptor is not None:
            await self._interceptor.stop()
