"""Agents for the end-to-end tests: the official SDK as a program, and an HTTP client behind the proxy.

Promise: both are told the proxy and the CA, and nothing else. Concurrency: each call makes its own.
"""

import asyncio
import os
import ssl
import sys
from pathlib import Path

import httpx

from sidecar.intercept.interceptor import Interceptor


def proxy_port(interceptor: Interceptor) -> int:
    return interceptor.addresses[0][1]


async def run_sdk(interceptor: Interceptor, *arguments: str) -> asyncio.subprocess.Process:
    """Start the SDK with nothing but environment variables that point it at the proxy."""
    environment = {
        "PATH": os.environ["PATH"],
        "OPENAI_API_KEY": "sk-agent",
        "HTTPS_PROXY": f"http://127.0.0.1:{proxy_port(interceptor)}",
        "SSL_CERT_FILE": str(interceptor.authority.bundle),
    }
    script = Path(__file__).with_name("sdk_agent.py")
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def client(interceptor: Interceptor) -> httpx.AsyncClient:
    context = ssl.create_default_context(cafile=str(interceptor.authority.certificate))
    proxy = f"http://127.0.0.1:{proxy_port(interceptor)}"
    return httpx.AsyncClient(proxy=proxy, verify=context, trust_env=False, timeout=20)
