"""What an agent's environment needs so that its programs trust the interception CA.

Promise: one bundle of certificates and one trust store beside it do for every program named here. The variables
replace a program's trust store and do not add to it, which is why the bundle holds the public roots too.
Concurrency: pure functions.
"""

import contextlib
import re
import warnings
from pathlib import PurePath

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.utils import CryptographyDeprecationWarning

TRUSTSTORE = "ca-truststore.p12"
"""Name of Java's trust store, beside the bundle."""

TRUSTSTORE_PASSWORD = "changeit"
"""Java's own default. It protects nothing: the store holds certificates, and whoever trusts them may read them."""

USES = {
    "SSL_CERT_FILE": "Python (ssl, openai, httpx, aiohttp, urllib), Go, curl, OpenSSL, Ruby, Rust",
    "REQUESTS_CA_BUNDLE": "Python: requests",
    "CURL_CA_BUNDLE": "curl, and requests",
    "NODE_EXTRA_CA_CERTS": "Node",
    "JAVA_TOOL_OPTIONS": "Java",
}
"""Variables in the order they are printed, and who reads each."""


_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)


def agent_variables(bundle: PurePath) -> dict[str, str]:
    """The variables for an agent that sees the bundle at ``bundle`` and the trust store beside it."""
    files = dict.fromkeys(USES, str(bundle))
    store = bundle.with_name(TRUSTSTORE)
    return files | {
        "JAVA_TOOL_OPTIONS": f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStoreType=PKCS12 "
        f"-Djavax.net.ssl.trustStorePassword={TRUSTSTORE_PASSWORD}"
    }


def java_truststore(bundle: bytes) -> bytes:
    """The certificates of a PEM bundle as a PKCS#12 store in which Java (8u301 and later) trusts each of them."""
    named = [PKCS12Certificate(found, b"ca-%d" % number) for number, found in enumerate(_certificates(bundle))]
    return serialize_java_truststore(named, BestAvailableEncryption(TRUSTSTORE_PASSWORD.encode()))


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    found = []
    with warnings.catch_warnings():
        # Some public roots are older than today's rules; cryptography warns of them, and means to refuse them.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        for block in _BLOCK.findall(bundle):
            with contextlib.suppress(ValueError):
                found.append(x509.load_pem_x509_certificate(block))
    return found
