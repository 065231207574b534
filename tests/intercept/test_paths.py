"""Other providers' paths as the gateway's own."""

import pytest

from sidecar.intercept.paths import gateway_path


@pytest.mark.parametrize(
    ("path", "own"),
    [
        (
            "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21",
            "/v1/chat/completions?api-version=2024-10-21",
        ),
        ("/openai/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/models?api-version=1", "/v1/models?api-version=1"),
        (
            "/models/chat/completions?api-version=2024-05-01-preview",
            "/v1/chat/completions?api-version=2024-05-01-preview",
        ),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/v1beta/openai/chat/completions", "/v1/chat/completions"),
        ("/beta/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/models", "/v1/models"),
        ("/models/m", "/v1/models/m"),
    ],
)
def test_a_providers_prefix_becomes_the_gateways(path: str, own: str) -> None:
    assert gateway_path(path) == own
    assert gateway_path(own) == own, "the gateway's own paths stay"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions?a=/api/v1/",
        "/v1/messages",
        "/sessions/s/v1/chat/completions",
        "/openai/deployments//chat/completions",
        "/openai/deployments/a",
        "/openai/files",
        "/modelsx",
        "/chat/completionsx",
        "/x/api/v1/chat/completions",
        "/",
        "*",
        "",
    ],
)
def test_a_path_of_no_provider_is_left_alone(path: str) -> None:
    assert gateway_path(path) == path
