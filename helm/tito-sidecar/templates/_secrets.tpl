{{- /* One random value: the one that the cluster has, else a new one. Called once per key: each call is another value.
Takes (dict "root" $ "found" DATA "key" KEY "given" VALUE "field" NAME). */}}
{{- define "tito.secretValue" -}}
{{- if .given -}}
{{ .given | b64enc }}
{{- else if .root.Values.gitOps -}}
{{ fail (printf "secrets.%s is empty and gitOps is true: a value made here would be another one with each render; set it, or make the Secret yourself and set secrets.create to false" .field) }}
{{- else if hasKey .found .key -}}
{{ get .found .key }}
{{- else -}}
{{ randAlphaNum 43 | b64enc }}
{{- end }}
{{- end }}

{{- /* Checks that cross several values; the schema checks each alone. Renders nothing. */}}
{{- define "tito.validate" -}}
{{- $v := .Values }}
{{- if $v.secrets.create }}
{{- if not $v.secrets.engineApiKey }}
{{- fail "secrets.engineApiKey is empty: without a key agents could call the engine themselves, past the sidecar; start SGLang with --api-key and give the key here, or make the Secret yourself and set secrets.create to false" }}
{{- end }}
{{- if and (not $v.secrets.storeUrl) (or $v.gateway.enabled (not $v.sidecar.ephemeralStore)) }}
{{- fail "secrets.storeUrl is empty: the gateway, and sidecars that end with their pod, store into PostgreSQL (postgresql://USER:PASSWORD@HOST:5432/DATABASE); to go without a gateway on SQLite in the pod set sidecar.ephemeralStore" }}
{{- end }}
{{- end }}
{{- if and $v.gateway.enabled (not $v.sidecar.engineUrl) }}
{{- fail "sidecar.engineUrl is empty: the gateway needs its engine, http://HOST:PORT" }}
{{- end }}
{{- if and $v.webhook.enabled $v.gitOps (eq $v.webhook.certificate.mode "generated") }}
{{- fail "webhook.certificate.mode is generated and gitOps is true: each render would make another certificate; set it to certManager or existing" }}
{{- end }}
{{- if eq $v.webhook.certificate.mode "existing" }}
{{- if or (not $v.webhook.certificate.secretName) (not $v.webhook.certificate.caBundle) }}
{{- fail "webhook.certificate.mode is existing: set webhook.certificate.secretName (a kubernetes.io/tls Secret) and webhook.certificate.caBundle (the CA's PEM in base64)" }}
{{- end }}
{{- end }}
{{- if ne (empty $v.launcher.serviceAccounts) (empty $v.launcher.namespaces) }}
{{- fail "launcher needs both serviceAccounts and namespaces, or neither" }}
{{- end }}
{{- end }}
