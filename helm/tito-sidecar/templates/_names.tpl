{{- /* Names, labels and images of this chart's own objects. Each takes the root context. */}}

{{- define "tito.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 48 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tito.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tito.labels" -}}
{{ include "tito.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Takes .Values.image. */}}
{{- define "tito.image" -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end }}
{{- end }}

{{- define "tito.pullSecrets" -}}
{{- range .Values.image.pullSecrets }}
- name: {{ . }}
{{- end }}
{{- end }}

{{- /* Replicas on different nodes where possible. Takes (dict "root" $ "component" NAME). */}}
{{- define "tito.spread" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "tito.selector" .root | nindent 12 }}
            app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* Security of every pod that is ours: nothing that the process does not need. */}}
{{- define "tito.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1337
runAsGroup: 1337
fsGroup: 1337
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "tito.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 1337
runAsGroup: 1337
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* A variable's value as it stands: Kubernetes reads `$(NAME)` in it, and `$$` as one `$`. Takes a string. */}}
{{- define "tito.plain" -}}
{{- . | replace "$" "$$" | quote }}
{{- end }}

{{- /* Settings of `serve` as environment variables. Takes a map; numbers keep their digits. */}}
{{- define "tito.settingsEnv" -}}
{{- range $at, $name := keys . | sortAlpha }}
{{- $value := get $ $name }}
{{- if $at }}
{{ end -}}
- name: TITO_{{ upper $name }}
  value: {{ include "tito.plain" ((kindIs "float64" $value) | ternary (toJson $value) (toString $value)) }}
{{- end }}
{{- end }}

{{- /* Port of a URL, as a number. */}}
{{- define "tito.portOf" -}}
{{- $url := urlParse . }}
{{- $found := regexFind ":[0-9]+$" $url.host | trimPrefix ":" }}
{{- default (ternary "443" "80" (eq $url.scheme "https")) $found }}
{{- end }}
