{{/* Of the Service of the webhook, and of its Secret. */}}
{{- define "kvquota.webhook" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}-webhook
{{- end }}

{{/* Of its configuration, which is in no namespace. */}}
{{- define "kvquota.webhookConfiguration" -}}
{{- printf "%s-%s" .Release.Namespace (include "kvquota.webhook" .) }}
{{- end }}

{{- define "kvquota.webhookArguments" -}}
- --webhook-listen=:9443
- --webhook-service={{ .Release.Namespace }}/{{ include "kvquota.webhook" . }}
{{- if .Values.webhook.certManager.enabled }}
- --webhook-certificates=/etc/kvquota/webhook
{{- end }}
- --sidecar-image={{ include "kvquota.image" (dict "image" .Values.webhook.sidecar.image "version" .Chart.AppVersion) }}
- --sidecar-pull-policy={{ .Values.webhook.sidecar.image.pullPolicy }}
- {{ printf "--sidecar-resources=%s,%s" (include "kvquota.sidecarCpu" .) (include "kvquota.sidecarMemory" .) | quote }}
{{- end }}

{{/* What is too little is looked at here: it is no pattern, and numbers and texts of it are the same. */}}
{{- define "kvquota.sidecarCpu" -}}
{{- $cpu := .Values.webhook.sidecar.cpu | toString }}
{{- if not (regexMatch "[1-9]" $cpu) }}
{{- fail (printf "webhook.sidecar.cpu is %s: a sidecar cannot run, choose more than 0, as in 200m" $cpu) }}
{{- end }}
{{- $cpu }}
{{- end }}

{{/* A number in a file of values is a float to helm, which would write it as 3e+08. */}}
{{- define "kvquota.sidecarMemory" -}}
{{- $memory := .Values.webhook.sidecar.memory }}
{{- $text := kindIs "string" $memory | ternary $memory (int64 $memory | toString) }}
{{- $unit := regexFind "[A-Za-z]*$" $text }}
{{- $scale := get (dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824) $unit }}
{{- if le (mulf (trimSuffix $unit $text) $scale) 67108864.0 }}
{{- fail (printf "webhook.sidecar.memory is %s: a sidecar alone takes up to 64Mi, choose more, as in 256Mi" $text) }}
{{- end }}
{{- $text }}
{{- end }}
