"""The order of the rules that decide which session a call belongs to."""

from __future__ import annotations

import itertools

import pytest

from adapters.protocols.errors import RequestError
from sidecar.gateway.identity import IdentityRules, resolve_session
from sidecar.sessions.keys import session_key

SECRET = b"secret"
OPEN = IdentityRules(SECRET, keys_required=False, fallback=None)
SOURCES = ("x-session-id", "x-smg-routing-key", "path", "body", "fallback")
SOME_SOURCES = [some for count in range(1, 6) for some in itertools.combinations(SOURCES, count)]
STRICT = IdentityRules(SECRET, keys_required=True, fallback="fallback")


def bearer(token: str, **headers: str) -> dict[str, str]:
    return {
        "authorization": f"Bearer {token}",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }


def refused(
    rules: IdentityRules, headers: dict[str, str], path: str | None = None, body: str | None = None
) -> RequestError:
    with pytest.raises(RequestError) as caught:
        resolve_session(rules, headers, path, body)
    return caught.value


class TestWithoutKeys:
    @pytest.mark.parametrize("given_names", SOME_SOURCES)
    def test_the_first_of_the_sources_names_the_session(self, given_names: tuple[str, ...]) -> None:
        headers = {name: f"from {name}" for name in given_names if name.startswith("x-")}
        named = {name: f"from {name}" if name in given_names else None for name in ("path", "body", "fallback")}
        rules = IdentityRules(SECRET, keys_required=False, fallback=named["fallback"])
        chosen = resolve_session(rules, headers, named["path"], named["body"])
        assert chosen == f"from {given_names[0]}"

    def test_an_empty_id_is_named_and_not_replaced(self) -> None:
        rules = IdentityRules(SECRET, keys_required=False, fallback="fallback")
        assert resolve_session(rules, {"x-session-id": ""}, "p", None) == ""

    def test_a_call_that_names_none_is_told_how(self) -> None:
        error = refused(OPEN, {})
        assert (error.status, error.param) == (400, "session_id")
        for remedy in ("X-Session-Id", "/sessions/{session_id}/v1", "--session-id"):
            assert remedy in error.message

    @pytest.mark.parametrize("token", ["sk-abc", "EMPTY", ""])
    def test_any_other_api_key_means_nothing(self, token: str) -> None:
        assert resolve_session(OPEN, bearer(token), "p", None) == "p"


class TestKeys:
    @pytest.mark.parametrize("rules", [OPEN, STRICT])
    @pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  "])
    def test_a_key_decides_alone(self, rules: IdentityRules, scheme: str) -> None:
        headers = {"authorization": scheme + session_key("s", SECRET)}
        assert resolve_session(rules, headers, None, None) == "s"

    def test_a_key_may_come_as_x_api_key(self) -> None:
        assert resolve_session(STRICT, {"x-api-key": session_key("s", SECRET)}, None, None) == "s"
        basic = {"authorization": "Basic abc", "x-api-key": session_key("s", SECRET)}
        assert resolve_session(STRICT, basic, None, None) == "s"

    @pytest.mark.parametrize("rules", [OPEN, STRICT])
    def test_the_same_session_may_be_named_beside_it(self, rules: IdentityRules) -> None:
        headers = bearer(session_key("s", SECRET), x_session_id="s", x_smg_routing_key="s")
        assert resolve_session(rules, headers, "s", "s") == "s"

    @pytest.mark.parametrize("rules", [OPEN, STRICT])
    @pytest.mark.parametrize("where", ["x_session_id", "x_smg_routing_key", "path", "body"])
    def test_another_session_beside_it_is_forbidden(self, rules: IdentityRules, where: str) -> None:
        headers = bearer(session_key("s", SECRET), **({where: "other"} if where.startswith("x_") else {}))
        error = refused(rules, headers, *("other" if where == name else None for name in ("path", "body")))
        assert (error.status, error.kind, error.code) == (403, "permission_error", "wrong_session")
        assert "'other'" in error.message

    @pytest.mark.parametrize("rules", [OPEN, STRICT])
    @pytest.mark.parametrize("key", [session_key("s", b"wrong secret"), "tito-YQ.é", "tito-a.b"])
    def test_a_forged_key_is_unauthorized_even_where_none_is_needed(self, rules: IdentityRules, key: str) -> None:
        error = refused(rules, bearer(key), "s", None)
        assert (error.status, error.kind, error.code) == (401, "authentication_error", "invalid_api_key")


class TestRequiredKeys:
    def test_a_call_without_a_key_is_unauthorized_whatever_it_names(self) -> None:
        error = refused(STRICT, {"x-session-id": "s"}, "s", "s")
        assert error.status == 401
        assert "POST /session/open" in error.message

    @pytest.mark.parametrize("token", ["sk-abc", ""])
    def test_another_api_key_is_unauthorized(self, token: str) -> None:
        error = refused(STRICT, bearer(token), "s", None)
        assert (error.status, error.message) == (401, "the API key is no valid session key")

    def test_the_fallback_is_for_nobody(self) -> None:
        assert refused(STRICT, {}).status == 401
