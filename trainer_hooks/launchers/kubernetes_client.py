"""The few calls of the Kubernetes API that the `kubernetes` launcher makes, over HTTP with httpx.

Promises: passing trouble (429 with its `Retry-After`, 5xx, a lost connection) is waited out for a bounded time; a
refused token or right is a wrong setting; everything else is a `KubernetesError` with the server's own words.
The token file is read for each call, since kubelet replaces it. One object per event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import number_setting, text_setting

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PASSING = frozenset({429, 500, 502, 503, 504})
_CALL_SECONDS = 30.0
_LONGEST_DELAY = 10.0


class KubernetesError(Exception):
    """The API server refused, or could not be reached in time (`status` None)."""

    def __init__(self, message: str, *, status: int | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API server is. `patience_seconds`: how long passing trouble is waited out, per call."""

    url: str
    token_file: Path | None
    ca_file: Path | None
    patience_seconds: float = 60.0


def api_server(args: Any) -> ApiServer:
    """From `TITO_KUBERNETES_{API,TOKEN_FILE,CA_FILE,RETRY_SEC}`; in a pod, its service account's.

    Raises `SettingError` where neither says where the server is, or a named file is not there.
    """
    url = text_setting(args, "TITO_KUBERNETES_API") or _in_cluster_url()
    if url is None:
        raise SettingError(
            "TITO_KUBERNETES_API is not set and this is no pod (KUBERNETES_SERVICE_HOST is not set either); name "
            "the API server, for example http://127.0.0.1:8001 of kubectl proxy"
        )
    if not url.startswith(("http://", "https://")):
        raise SettingError(f"TITO_KUBERNETES_API is {url!r}: it must start with http:// or https://")
    return ApiServer(
        url.rstrip("/"),
        token_file=_file(args, "TITO_KUBERNETES_TOKEN_FILE", "token"),
        ca_file=_file(args, "TITO_KUBERNETES_CA_FILE", "ca.crt"),
        patience_seconds=number_setting(args, "TITO_KUBERNETES_RETRY_SEC", 60.0),
    )


def account_namespace() -> str | None:
    """The namespace of the pod that this runs in; None outside of one."""
    file = _ACCOUNT / "namespace"
    return file.read_text().strip() if file.is_file() else None


class KubernetesClient:
    """An asyncio client; use it as an async context manager."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        verify: ssl.SSLContext | bool = False  # read for https alone
        if server.url.startswith("https://"):
            verify = ssl.create_default_context(cafile=server.ca_file)
        self._http = httpx.AsyncClient(base_url=server.url, verify=verify, trust_env=False, timeout=_CALL_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def call(
        self, method: str, path: str, *, body: Any = None, params: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The reply's object. Every call made here may be repeated: names of new objects are fixed."""
        content = await self._send(method, path, body, params)
        try:
            reply = json.loads(content)
        except ValueError as error:
            raise KubernetesError(f"{method} {path} answered no JSON: {content[:200]!r}") from error
        if not isinstance(reply, dict):
            raise KubernetesError(f"{method} {path} answered no object: {content[:200]!r}")
        return reply

    async def text(self, path: str, params: Mapping[str, str]) -> str:
        """The reply as text: logs."""
        return (await self._send("GET", path, None, params)).decode(errors="replace")

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Events as they come, until the server ends the watch. Raises `KubernetesError` once, without repeats."""
        query = {**params, "watch": "1"}
        timeout = httpx.Timeout(_CALL_SECONDS, read=float(params["timeoutSeconds"]) + _CALL_SECONDS)
        try:
            async with self._http.stream(
                "GET", path, params=query, headers=self._headers(), timeout=timeout
            ) as response:
                if response.status_code != 200:
                    raise _refusal("GET", path, response, await response.aread())
                async for line in response.aiter_lines():
                    if line:
                        yield json.loads(line)
        except (httpx.HTTPError, ValueError) as error:
            raise KubernetesError(f"the watch of {path} broke: {error!r}") from error

    async def _send(self, method: str, path: str, body: Any, params: Mapping[str, str] | None) -> bytes:
        loop = asyncio.get_running_loop()
        end, delay = loop.time() + self._server.patience_seconds, 0.2
        while True:
            asked_delay: float | None = None
            try:
                response = await self._http.request(method, path, json=body, params=params, headers=self._headers())
            except httpx.HTTPError as error:
                failure = KubernetesError(f"{method} {self._server.url}{path}: {error!r}")
            else:
                if response.is_success:
                    return response.content
                failure = _refusal(method, path, response, response.content)
                if response.status_code not in _PASSING:
                    raise failure
                asked_delay = _retry_after(response)
            wait = min(_LONGEST_DELAY, delay if asked_delay is None else asked_delay)
            if loop.time() + wait > end:
                raise failure
            await asyncio.sleep(wait)
            delay *= 2

    def _headers(self) -> dict[str, str]:
        file = self._server.token_file
        return {} if file is None else {"authorization": f"Bearer {file.read_text().strip()}"}


def _refusal(method: str, path: str, response: httpx.Response, content: bytes) -> KubernetesError:
    """What the server's `Status` object says. Raises `SettingError` where the token or its rights are at fault."""
    try:
        status = json.loads(content)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        status = {"message": content[:300].decode(errors="replace")}
    text = f"{method} {path}: {status.get('message')} (HTTP {response.status_code})"
    if response.status_code in (401, 403):
        raise SettingError(f"{text}; check TITO_KUBERNETES_TOKEN_FILE and the role of its account")
    return KubernetesError(text, status=response.status_code, reason=status.get("reason"))


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _in_cluster_url() -> str | None:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _file(args: Any, setting: str, account_file: str) -> Path | None:
    named = text_setting(args, setting)
    if named is None:
        path = _ACCOUNT / account_file
        return path if path.is_file() else None
    if not Path(named).is_file():
        raise SettingError(f"{setting} is {named!r}, which is no file")
    return Path(named)
