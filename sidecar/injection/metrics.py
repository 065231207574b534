"""What the webhook counts, for Prometheus. One registry per webhook; safe from any thread."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from sidecar.injection.refusal import REASONS
from sidecar.injection.review import Answer

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1)


class Metrics:
    """Counters of reviews and refusals, time per review, state of the serving certificate."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._reviews = Counter(
            "tito_injection_reviews",
            "Reviews answered; outcome is injected, unchanged, refused, ignored or invalid",
            ["outcome", "mode"],
            registry=self._registry,
        )
        self._refusals = Counter(
            "tito_injection_refusals",
            "Pods refused, by each reason that they gave",
            ["reason"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "tito_injection_seconds", "Time per review", buckets=_SECONDS, registry=self._registry
        )
        self._expiry = Gauge(
            "tito_injection_certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends",
            registry=self._registry,
        )
        self._reloads = Counter(
            "tito_injection_certificate_reloads",
            "Changes of the certificate's files; result is loaded or failed",
            ["result"],
            registry=self._registry,
        )
        for reason in REASONS:  # a series that is there from the start shows its first increase
            self._refusals.labels(reason)
        for result in ("loaded", "failed"):
            self._reloads.labels(result)

    def answered(self, answer: Answer, seconds: float) -> None:
        """One review was answered."""
        self._reviews.labels(answer.outcome, answer.mode or "").inc()
        for reason in answer.reasons:
            self._refusals.labels(reason).inc()
        self._seconds.observe(seconds)

    def invalid(self) -> None:
        """A body was no review."""
        self._reviews.labels("invalid", "").inc()

    def certificate(self, expiry: float, *, result: str | None = None) -> None:
        """The certificate that is served ends at `expiry` (Unix time); `result` of a change of its files."""
        self._expiry.set(expiry)
        if result is not None:
            self._reloads.labels(result).inc()

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)
