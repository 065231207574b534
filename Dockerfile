# syntax=docker/dockerfile:1.7
# The image of gateway, injected sidecar, redirect-init and webhook: docker build -t tito-sidecar:0.1.0 .
# For a build that can be repeated bit by bit, name the base by its digest:
#   --build-arg BASE=python:3.12.12-slim-bookworm@sha256:...
ARG BASE=python:3.12.12-slim-bookworm

FROM ${BASE} AS build
WORKDIR /source
COPY docker/ docker/
COPY pyproject.toml README.md LICENSE ./
COPY adapters/ adapters/
COPY sidecar/ sidecar/
COPY trainer_hooks/ trainer_hooks/
RUN sh docker/install.sh /opt/tito

FROM ${BASE}
# redirect-init calls iptables and ip6tables; Debian keeps one version per release, so none is named here
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iptables \
    && rm -rf /var/lib/apt/lists/* \
    && rm -rf /usr/local/lib/python3.12/site-packages/pip* /usr/local/lib/python3.12/ensurepip /usr/local/bin/pip* \
    && groupadd --gid 1337 tito \
    && useradd --uid 1337 --gid 1337 --no-log-init --home-dir /var/lib/tito-sidecar --create-home --shell /usr/sbin/nologin tito
COPY --from=build /opt/tito /opt/tito
ENV PATH=/opt/tito/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/var/lib/tito-sidecar/hub \
    TITO_STATE_DIR=/var/lib/tito-sidecar \
    TITO_LISTEN=0.0.0.0:8800 \
    TITO_CONTROL_LISTEN=0.0.0.0:8801 \
    TITO_HEALTH_LISTEN=0.0.0.0:8802
# a number, so that Kubernetes can see that it is not root
USER 1337:1337
WORKDIR /var/lib/tito-sidecar
VOLUME /var/lib/tito-sidecar
EXPOSE 8800 8801 8802
# for plain container engines; Kubernetes has probes of its own. An engine that is away is no reason to be unhealthy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=6 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8802/health', timeout=4)"]
ENTRYPOINT ["tito-sidecar"]
CMD ["serve"]
