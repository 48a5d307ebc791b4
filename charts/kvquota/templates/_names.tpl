{{- define "kvquota.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}-operator
{{- end }}

{{- define "kvquota.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "kvquota.name" .) }}
{{- else }}
{{- required "serviceAccount.create is false: name the account that exists in serviceAccount.name" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "kvquota.selectorLabels" -}}
app.kubernetes.io/name: kvquota-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvquota.labels" -}}
{{ include "kvquota.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Of an image as values.yaml has it, and the version that stands for an empty tag. */}}
{{- define "kvquota.image" -}}
{{- if .image.digest }}
{{- printf "%s@%s" .image.repository .image.digest }}
{{- else }}
{{- printf "%s:%s" .image.repository (.image.tag | default .version) }}
{{- end }}
{{- end }}

{{/* Of the policies that warn, which are in no namespace. */}}
{{- define "kvquota.warnings" -}}
{{- printf "%s-%s-not-enforced-yet" .Release.Namespace (.Release.Name | trunc 52 | trimSuffix "-") }}
{{- end }}

{{- define "kvquota.subjects" -}}
- kind: ServiceAccount
  name: {{ include "kvquota.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/* The namespaces that are served, one a line; the release's own where none is named. */}}
{{- define "kvquota.namespaces" -}}
{{- range (.Values.namespaces | default (list .Release.Namespace)) }}
{{ . }}
{{- end }}
{{- end }}

{{/*
All that the operator may do, the same in a Role and in a ClusterRole. Secrets are read one by one, by name: there is no
list and no watch of them.
*/}}
{{- define "kvquota.rules" -}}
- apiGroups: [kvquota.dev]
  resources: [modelpools, tenantquotas]
  verbs: [get, list, watch]
- apiGroups: [kvquota.dev]
  resources: [modelpools/status, tenantquotas/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}

{{/* `--set syncSeconds=0.5` is text to helm, so the bounds are looked at here. */}}
{{- define "kvquota.syncSeconds" -}}
{{- $seconds := float64 .Values.syncSeconds }}
{{- if or (lt $seconds 0.2) (gt $seconds 60.0) }}
{{- fail (printf "syncSeconds is %v: choose 0.2 to 60" .Values.syncSeconds) }}
{{- end }}
{{- .Values.syncSeconds }}
{{- end }}
