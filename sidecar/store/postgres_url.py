"""Reading the URL of a PostgreSQL store: what the driver is given, and what may be shown.

Promise: pure; a password appears in no message and in no `place`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from sidecar.store.protocol import StoreError

SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")

_HOST = r"(?:\[[0-9a-fA-F:.%]+\]|[^\[\]:,/@\s]*)(?::\d*)?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*\Z")
_OWN = "statement_cache_size"


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """One database. `dsn` is for asyncpg, which reads all parameters of libpq's that it knows and takes the others
    as settings of the session, for example `search_path`."""

    dsn: str = field(repr=False)
    place: str
    """For messages: hosts and database."""
    secrets: tuple[str, ...] = field(repr=False)
    """What no message may hold."""
    named_statements: bool
    """False behind a pooler that gives each transaction another connection."""

    def without_secrets(self, text: str) -> str:
        """A message fit to be shown."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def read_url(url: str) -> PostgresUrl:
    """Read `postgresql://[USER[:PASSWORD]@][HOST[:PORT],...]/DATABASE[?PARAMETER=VALUE&...]`.

    Raises `StoreError` for what cannot be one, without telling what stands in the password's place."""
    scheme, _, rest = url.partition("://")
    credentials, at, _ = rest.partition("?")[0].rpartition("@")
    try:
        parts = urlsplit(f"postgresql://{rest}")
    except ValueError as error:
        raise StoreError(f"store {scheme}://...: this is no URL ({type(error).__name__}); {_FORM}") from None
    hosts = parts.netloc.rpartition("@")[2]
    broken = parts.fragment or "@" in parts.path or ("@" in parts.query and not at) or "/" in credentials
    if broken or not _HOSTS.match(hosts):
        raise StoreError(
            f"store {scheme}://...: host and port cannot be told from user and password; write their characters "
            f"other than letters and digits percent-encoded (@ is %40, / is %2F, # is %23, ? is %3F). {_FORM}"
        )
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    size = parameters.pop(_OWN, "")
    if size not in ("", "0"):
        raise StoreError(f"store {scheme}://...: {_OWN} is {size!r}; leave it out, or give 0 behind a pooler")
    shown = hosts or parameters.get("host", "") or "local socket"
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    secrets = {password, unquote(password), parameters.get("password", ""), parameters.get("sslpassword", "")}
    query = f"?{urlencode(parameters)}" if parameters else ""
    return PostgresUrl(
        dsn=f"postgresql://{parts.netloc}{parts.path}{query}",
        place=f"postgresql://{shown}{parts.path}",
        secrets=tuple(sorted(filter(None, secrets), key=len, reverse=True)),
        named_statements=size == "",
    )


_FORM = "Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full"
