{{- /* The library template: what the injection webhook adds to pods, for pod specs of your own. Each template takes this
chart's values: `(index .Values "tito-sidecar")` in a chart that depends on this one. sidecar/injection builds the same
container; a test holds both against each other.

  tito.sidecar              the sidecar, one entry of `initContainers`, after your own ones
  tito.redirectInit         transparent only: the entry behind it, the last one
  tito.volumes              entries of `volumes`
  tito.agentEnv             entries of `env` of the agent's containers
  tito.agentSecurityContext their `securityContext`: what a root agent could get around the sidecar with
  tito.agentVolumeMounts    transparent only: entries of their `volumeMounts` */}}

{{- define "tito.secretEnv" -}}
- name: TITO_ENGINE_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .secrets.name }}
      key: engine-api-key
- name: TITO_ENGINE_ADMIN_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .secrets.name }}
      key: engine-admin-key
      optional: true
- name: TITO_CONTROL_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .secrets.name }}
      key: control-token
- name: TITO_SESSION_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ .secrets.name }}
      key: session-secret
{{- end }}

{{- define "tito.sidecar" -}}
{{- $s := .sidecar }}
{{- if not $s.engineUrl }}
{{- fail "sidecar.engineUrl is empty: the sidecar needs its engine, http://HOST:PORT" }}
{{- end }}
{{- $transparent := eq $s.mode "transparent" }}
{{- if and $transparent (not $s.sessionId) }}
{{- fail "sidecar.sessionId is empty: in transparent mode nothing that the agent sends names its session" }}
{{- end -}}
- name: tito-sidecar
  image: {{ include "tito.image" .image }}
  imagePullPolicy: {{ .image.pullPolicy }}
  restartPolicy: Always
  args: [serve]
  env:
    - name: TITO_ENGINE_URL
      value: {{ include "tito.plain" $s.engineUrl }}
    {{- include "tito.secretEnv" . | nindent 4 }}
    {{- if not $s.ephemeralStore }}
    - name: TITO_STORE
      valueFrom:
        secretKeyRef:
          name: {{ .secrets.name }}
          key: store-url
    {{- end }}
    - name: TITO_LISTEN
      value: 127.0.0.1:8800
    - name: TITO_CONTROL_LISTEN
      value: 0.0.0.0:8801
    - name: TITO_HEALTH_LISTEN
      value: 0.0.0.0:8802
    - name: TITO_STATE_DIR
      value: /var/lib/tito-sidecar
    - name: HF_HOME
      value: /var/lib/tito-sidecar/hub
    - name: TITO_DATA_AUTH
      value: session-key
    {{- if $transparent }}
    - name: TITO_INTERCEPT
      value: transparent@8081
    - name: TITO_CA_DIR
      value: /var/lib/tito-ca
    - name: TITO_CA_BUNDLE
      value: /etc/tito-ca/ca-bundle.pem
    {{- end }}
    {{- with $s.sessionId }}
    - name: TITO_SESSION_ID
      value: {{ include "tito.plain" . }}
    {{- end }}
    {{- with include "tito.settingsEnv" $s.settings }}
    {{- . | nindent 4 }}
    {{- end }}
  ports:
    - {name: tito-control, containerPort: 8801, protocol: TCP}
    - {name: tito-health, containerPort: 8802, protocol: TCP}
  startupProbe:
    httpGet: {path: "/ready?engine=1", port: 8802}
    periodSeconds: 2
    timeoutSeconds: 2
    failureThreshold: 150
  readinessProbe:
    httpGet: {path: /ready, port: 8802}
    periodSeconds: 5
    timeoutSeconds: 2
  livenessProbe:
    httpGet: {path: /health, port: 8802}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  {{- if $s.ephemeralStore }}
  lifecycle:
    preStop:
      exec:
        command: [tito-sidecar, sessions, wait-drained, --timeout, "570"]
  {{- end }}
  resources:
    {{- toYaml $s.resources | nindent 4 }}
  securityContext:
    {{- include "tito.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - name: tito-state
      mountPath: /var/lib/tito-sidecar
    - name: tito-tmp
      mountPath: /tmp
    {{- include "tito.noToken" . | nindent 4 }}
    {{- if $transparent }}
    - name: tito-ca
      mountPath: /var/lib/tito-ca
    - name: tito-ca-bundle
      mountPath: /etc/tito-ca
    {{- end }}
{{- end }}

{{- define "tito.redirectInit" -}}
{{- if eq .sidecar.mode "transparent" -}}
- name: tito-redirect
  image: {{ include "tito.image" .image }}
  imagePullPolicy: {{ .image.pullPolicy }}
  args: [redirect-init]
  securityContext:
    allowPrivilegeEscalation: false
    privileged: false
    readOnlyRootFilesystem: true
    runAsNonRoot: false
    runAsUser: 0
    runAsGroup: 0
    capabilities:
      drop: [ALL]
      add: [NET_ADMIN, NET_RAW]
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
    {{- include "tito.noToken" . | nindent 4 }}
{{- end }}
{{- end }}

{{- /* Kubernetes mounts the pod's service-account token wherever nothing is mounted at its place yet. */}}
{{- define "tito.noToken" -}}
- name: tito-no-token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}

{{- define "tito.volumes" -}}
- name: tito-state
  emptyDir: {}
- name: tito-tmp
  emptyDir: {}
- name: tito-no-token
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- if eq .sidecar.mode "transparent" }}
- name: tito-ca
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
- name: tito-ca-bundle
  emptyDir: {}
{{- end }}
{{- end }}

{{- define "tito.agentEnv" -}}
{{- if eq .sidecar.mode "transparent" -}}
- name: SSL_CERT_FILE
  value: /etc/tito-ca/ca-bundle.pem
{{- range list "REQUESTS_CA_BUNDLE" "CURL_CA_BUNDLE" "NODE_EXTRA_CA_CERTS" }}
- name: {{ . }}
  value: /etc/tito-ca/ca-bundle.pem
{{- end }}
- name: JAVA_TOOL_OPTIONS
  value: >-
    -Djavax.net.ssl.trustStore=/etc/tito-ca/ca-truststore.p12
    -Djavax.net.ssl.trustStoreType=PKCS12
    -Djavax.net.ssl.trustStorePassword=changeit
{{- else -}}
{{- if not .sidecar.sessionKeySecret }}
{{- fail "sidecar.sessionKeySecret is empty: name the Secret that holds the session's key (api_key in the reply of POST /session/open); Helm cannot make one" }}
{{- end -}}
- name: OPENAI_BASE_URL
  value: http://127.0.0.1:8800/v1
- name: OPENAI_API_BASE
  value: http://127.0.0.1:8800/v1
- name: ANTHROPIC_BASE_URL
  value: http://127.0.0.1:8800
{{- range list "OPENAI_API_KEY" "ANTHROPIC_API_KEY" }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $.sidecar.sessionKeySecret }}
      key: {{ $.sidecar.sessionKeySecretKey }}
{{- end }}
{{- end }}
{{- with .sidecar.sessionId }}
- name: TITO_SESSION_ID
  value: {{ include "tito.plain" . }}
{{- end }}
{{- end }}

{{- define "tito.agentSecurityContext" -}}
{{- $transparent := eq .sidecar.mode "transparent" -}}
{{- if $transparent -}}
allowPrivilegeEscalation: false
{{ end -}}
capabilities:
  drop: {{ ternary "[NET_ADMIN, NET_RAW, SETGID, SETUID]" "[NET_ADMIN, NET_RAW]" $transparent }}
{{- end }}

{{- define "tito.agentVolumeMounts" -}}
{{- if eq .sidecar.mode "transparent" -}}
- name: tito-ca-bundle
  mountPath: /etc/tito-ca
  readOnly: true
{{- end }}
{{- end }}

{{- /* What the webhook injects with: one YAML file of `tito-sidecar inject-webhook --config`. */}}
{{- define "tito.webhookSettings" -}}
image: {{ include "tito.image" .image | quote }}
image_pull_policy: {{ .image.pullPolicy }}
engine_url: {{ .sidecar.engineUrl | quote }}
mode: {{ .sidecar.mode }}
secret: {{ .secrets.name }}
ephemeral_store: {{ .sidecar.ephemeralStore }}
resources: {{ toJson .sidecar.resources }}
settings: {{ toJson .sidecar.settings }}
{{- end }}
