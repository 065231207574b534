"""PostgreSQL alone: its URL, its connections, its settings, and several programs on one database."""

from __future__ import annotations

import asyncio
import importlib.util
import ssl
from pathlib import Path

import pytest
from sqlalchemy import text

from sidecar.store import open_store
from sidecar.store.postgres_url import read_url
from sidecar.store.protocol import StoreError, StoreVersionError
from sidecar.store.sql import SqlStore
from tests.store.samples import assert_same_step, session, step
from tests.support.postgres import Postgres
from tests.support.postgres_proxy import proxied, self_signed


async def started(url: str, **options: float) -> SqlStore:
    store = SqlStore(url, **options)
    await store.start()
    return store


async def setting(store: SqlStore, name: str) -> str:
    found = await store.backend.write(lambda c: c.execute(text(f"SELECT current_setting('{name}')")).scalar_one())
    return str(found)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret/w0rd@host/db",
        "postgresql://me:s3cret?w0rd@host/db",
        "postgresql://me:s3cret#w0rd@host/db",
        "postgresql://me:s3cret",
        "postgresql://[me:s3cret@host/db",
        "postgresql://me:s3cret@host:port/db",
        "postgresql://me:s3cret@host/db?statement_cache_size=9",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)
    assert "w0rd" not in str(caught.value)


def test_a_url_is_shown_without_user_and_password() -> None:
    url = read_url("postgresql+asyncpg://me:s%403cret@a:5432,b:5433/db?sslmode=require&sslpassword=hidden")
    assert url.place == "postgresql://a:5432,b:5433/db"
    assert url.dsn == "postgresql://me:s%403cret@a:5432,b:5433/db?sslmode=require&sslpassword=hidden"
    assert url.without_secrets("s@3cret s%403cret hidden") == "*** *** ***"
    assert "3cret" not in repr(url)
    assert "hidden" not in repr(url)
    assert read_url("postgresql:///db?host=/run/pg").place == "postgresql:///run/pg/db"


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("sidecar.store.backends.find_spec", lambda name: None if name == "asyncpg" else found(name))
    with pytest.raises(StoreError, match=r"install tito-sidecar\[postgres\]"):
        open_store("postgresql://host/db")


async def test_wrong_parameters_are_named_without_the_password(postgres: Postgres) -> None:
    with pytest.raises(StoreError, match="sslmode") as caught:
        await started("postgresql://me:s3cret@127.0.0.1:1/db?sslmode=perhaps")
    assert "s3cret" not in str(caught.value)


async def test_a_database_that_is_not_there_is_named(postgres: Postgres) -> None:
    url = postgres.url.replace("/postgres?", "/nowhere?")
    with pytest.raises(StoreError, match=r"nowhere: there is no such database .* create it"):
        await started(url)


async def test_commits_are_synchronous_whatever_the_role_says(postgres_url: str) -> None:
    for given, expected in (("off", "on"), ("on", "on"), ("remote_apply", "remote_apply")):
        store = await started(f"{postgres_url}&synchronous_commit={given}")
        assert await setting(store, "synchronous_commit") == expected
        await store.close()


async def test_a_pooler_whose_commits_are_not_synchronous_is_refused(postgres_url: str) -> None:
    with pytest.raises(StoreError, match="synchronous_commit is off, and behind a pooler"):
        await started(f"{postgres_url}&synchronous_commit=off&statement_cache_size=0")


async def test_a_transaction_that_lost_its_program_is_ended_by_the_server(postgres_url: str) -> None:
    store = await started(postgres_url, timeout=7)
    assert await setting(store, "idle_in_transaction_session_timeout") == "21s"
    await store.close()


async def test_a_server_that_only_reads_is_named(postgres_url: str) -> None:
    await store_with_step(postgres_url)
    store = await started(f"{postgres_url}&default_transaction_read_only=on", timeout=0.2)
    with pytest.raises(StoreError, match=r"read-only .*target_session_attrs=read-write"):
        await store.save_session(session())
    assert "read-only" in (store.failure() or "")
    assert await store.counts() == {"sessions": 1, "steps": 1}
    await store.close()


async def store_with_step(url: str) -> None:
    store = await started(url)
    await store.save_session(session())
    await store.save_step(step(), {b"k": b"v"})
    await store.close()


async def test_reads_cannot_write(postgres_url: str) -> None:
    store = await started(postgres_url, timeout=0.2)
    with pytest.raises(StoreError, match="read-only"):
        await store.query("writing", lambda connection: connection.execute(text("DELETE FROM meta")))
    await store.close()


async def test_more_reads_than_connections_wait_for_each_other(postgres: Postgres, postgres_url: str) -> None:
    store = await started(postgres_url)
    await store.save_session(session())
    await store.save_step(step(), {b"k": b"v"})
    await asyncio.gather(*(store.load_session("s1") for _ in range(50)))
    connections = await postgres.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%step.session_id%' AND pid <> pg_backend_pid()"
    )
    assert connections[0][0] <= 5
    await store.close()


async def test_a_batch_takes_one_round_trip_for_each_kind_of_statement(
    postgres: Postgres, postgres_url: str
) -> None:
    async with proxied(postgres.socket) as proxy:
        store = await started(proxy.url(search_path=postgres_url.rpartition("=")[2]))
        await store.save_session(session())

        async def save(first: int, count: int) -> int:
            before = proxy.round_trips
            steps = [step(step_id=f"{n}", sequence=n) for n in range(first, first + count)]
            await asyncio.gather(*(store.save_step(one, {one.step_id.encode(): b"message"}) for one in steps))
            return proxy.round_trips - before

        await save(0, 1)
        await save(1, 2)  # statements are prepared now
        alone, together = await save(3, 1), await save(4, 100)
        await store.close()
    assert alone == 4, "BEGIN, blobs, steps, COMMIT"
    assert together == alone


async def test_a_store_behind_a_pooler_keeps_no_prepared_statement(postgres: Postgres, postgres_url: str) -> None:
    store = await started(f"{postgres_url}&statement_cache_size=0")
    await store.save_session(session())
    await asyncio.gather(*(store.save_step(step(step_id=f"{n}", sequence=n), {b"k": b"v"}) for n in range(20)))
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert len(loaded.steps) == 20
    count = "SELECT count(*) FROM pg_prepared_statements"
    assert await store.backend.write(lambda connection: connection.exec_driver_sql(count).scalar_one()) <= 1
    await store.close()


async def test_tls_is_as_the_url_asks(postgres: Postgres, postgres_url: str, tmp_path: Path) -> None:
    certificate, context = self_signed(tmp_path)
    other, _ = self_signed(tmp_path, "127.0.0.2")
    schema = postgres_url.rpartition("=")[2]
    async with proxied(postgres.socket, context) as proxy, proxied(postgres.socket) as plain:
        for parameters in ({"sslmode": "require"}, {"sslmode": "verify-full", "sslrootcert": str(certificate)}):
            store = await started(proxy.url(search_path=schema, **parameters))
            await store.close()
        with pytest.raises(StoreError, match=r"no TLS .*sslrootcert"):
            await started(proxy.url(sslmode="verify-full", sslrootcert=str(other)), timeout=5)
        with pytest.raises(StoreError, match="SSL"):
            await started(plain.url(sslmode="require"), timeout=0.2)
    assert context.verify_mode is ssl.CERT_NONE, "the server asks for no certificate of the client"


async def test_replicas_that_start_at_once_create_the_tables_once(postgres_url: str) -> None:
    stores = [SqlStore(postgres_url) for _ in range(6)]
    await asyncio.gather(*(store.start() for store in stores))
    await stores[0].save_session(session())
    for store in stores:
        assert await store.load_session("s1") is not None
        await store.close()


async def test_an_older_program_goes_on_beside_a_newer_minor_version(postgres: Postgres, postgres_url: str) -> None:
    await store_with_step(postgres_url)
    await postgres.execute("UPDATE meta SET value='1.99' WHERE key='schema_version'", url=postgres_url)
    for table in ("session", "step", "blob"):
        await postgres.execute(f"ALTER TABLE {table} ADD COLUMN unheard_of TEXT", url=postgres_url)
    await postgres.execute("UPDATE step SET unheard_of='kept'", url=postgres_url)
    store = await started(postgres_url)
    await store.save_session(session(state="finalized"))
    await store.save_step(step(retry_count=7), {})
    await store.save_step(step(step_id="b", sequence=1), {})
    loaded = await store.load_session("s1")
    await store.close()
    assert loaded is not None
    assert_same_step(loaded.steps[0], step(retry_count=7))
    kept = await postgres.execute("SELECT unheard_of FROM step ORDER BY step_id", url=postgres_url)
    assert [row[0] for row in kept] == ["kept", None]
    version = await postgres.execute("SELECT value FROM meta WHERE key='schema_version'", url=postgres_url)
    assert version[0][0] == "1.99"


async def test_columns_that_come_while_a_program_runs_do_not_disturb_it(
    postgres: Postgres, postgres_url: str
) -> None:
    store = await started(postgres_url)
    await store.save_session(session())
    await store.save_step(step(), {})
    assert await store.load_session("s1") is not None
    for table in ("session", "step"):
        await postgres.execute(f"ALTER TABLE {table} ADD COLUMN new TEXT", url=postgres_url)
    await store.save_step(step(step_id="b", sequence=1), {})
    loaded = await store.load_session("s1")
    assert loaded is not None
    assert len(loaded.steps) == 2
    await store.close()


async def test_a_newer_major_version_is_refused_and_left_alone(postgres: Postgres, postgres_url: str) -> None:
    await store_with_step(postgres_url)
    await postgres.execute("UPDATE meta SET value='2.0' WHERE key='schema_version'", url=postgres_url)
    with pytest.raises(StoreVersionError, match=r"schema version 2\.0"):
        await started(postgres_url)
    assert (await postgres.execute("SELECT count(*) FROM step", url=postgres_url))[0][0] == 1


async def test_tables_of_another_program_are_left_alone(postgres: Postgres, postgres_url: str) -> None:
    await postgres.execute("CREATE TABLE invoice (n int)", url=postgres_url)
    with pytest.raises(StoreError, match=r"another program \(invoice"):
        await started(postgres_url)


async def test_a_reader_creates_nothing(postgres: Postgres, postgres_url: str) -> None:
    store = SqlStore(postgres_url, read_only=True)
    with pytest.raises(StoreError, match="no store of tito-sidecar"):
        await store.start()
    await store_with_step(postgres_url)
    await store.start()
    assert await store.counts() == {"sessions": 1, "steps": 1}
    with pytest.raises(StoreError, match="opened for reading"):
        await store.save_session(session())
    await store.close()


async def test_a_password_is_taken_from_the_url_and_shown_nowhere(
    postgres: Postgres, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    user = f"p{postgres_url.rpartition('=')[2]}"
    await postgres.execute(f"CREATE ROLE {user} LOGIN SUPERUSER PASSWORD 'p@ss/w%rd'")
    await postgres.require_passwords(user)
    store = await started(postgres_url.replace("postgres:@", f"{user}:p%40ss%2Fw%25rd@"))
    await store.save_session(session())
    await store.close()
    for wrong in ("wr0ng%40one", ""):
        with pytest.raises(StoreError) as caught:
            await started(postgres_url.replace("postgres:@", f"{user}:{wrong}@"), timeout=0.3)
        assert "wr0ng" not in f"{caught.value!r}{caplog.text}"
    with pytest.raises(StoreError, match=r"wrong password .*check user and password of the URL"):
        await started(postgres_url.replace("postgres:@", f"{user}:wr0ng@"))


async def test_a_user_without_rights_is_told_so(postgres: Postgres, postgres_url: str) -> None:
    schema = postgres_url.rpartition("=")[2]
    await postgres.execute(f"CREATE ROLE u{schema} LOGIN")
    await postgres.execute(f"GRANT USAGE ON SCHEMA {schema} TO u{schema}")
    with pytest.raises(StoreError, match=r"no permission .*grant the user CREATE"):
        await started(postgres_url.replace("postgres:@", f"u{schema}:@"))
