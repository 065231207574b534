"""Where other providers put the OpenAI API, as the gateway's own paths.

Promise: a path that no rule knows is left as it is, and the gateway answers it with its own 404. The query,
Azure's ``api-version`` among it, stays. Sources of the prefixes: the providers' public API references, 2026.
Concurrency: pure functions.
"""

import re

_PREFIXES = re.compile(
    r"""
      /openai/deployments/[^/?]+(?=/)   # Azure OpenAI: the deployment is the model
    | /openai/v1(?=/)                   # Azure OpenAI, since its v1 API
    | /openai(?=/models(?:[/?]|\Z))     # Azure OpenAI: list of models
    | /models(?=/chat/completions(?:[/?]|\Z))  # Azure AI Foundry: *.services.ai.azure.com
    | /api/v1(?=/)                      # OpenRouter
    | /v1beta/openai(?=/)               # Gemini's OpenAI endpoint
    | /beta(?=/)                        # DeepSeek
    | (?=/(?:chat/completions|models)(?:[/?]|\Z))  # DeepSeek: without any version
    """,
    re.VERBOSE,
)


def gateway_path(path: str) -> str:
    """Return the gateway's path for ``path`` (origin form, with its query)."""
    found = _PREFIXES.match(path)
    return path if found is None else "/v1" + path[found.end() :]
