{{/* Of the Service of the webhook, and of its Secret. */}}
{{- define "kvquota.webhook" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}-webhook
{{- end }}

{{/* Of its configuration, which is in no namespace. */}}
{{- define "kvquota.webhookConfiguration" -}}
{{- printf "%s-%s" .Release.Namespace (include "kvquota.webhook" .) }}
{{- end }}

{{- define "kvquota.sidecarImage" -}}
{{- $image := .Values.webhook.sidecar.image }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "kvquota.webhookArguments" -}}
- --webhook-listen=:9443
- --webhook-service={{ .Release.Namespace }}/{{ include "kvquota.webhook" . }}
{{- if .Values.webhook.certManager.enabled }}
- --webhook-certificates=/etc/kvquota/webhook
{{- end }}
- --sidecar-image={{ include "kvquota.sidecarImage" . }}
- --sidecar-pull-policy={{ .Values.webhook.sidecar.image.pullPolicy }}
- --sidecar-resources={{ .Values.webhook.sidecar.cpu }},{{ .Values.webhook.sidecar.memory }}
{{- end }}
