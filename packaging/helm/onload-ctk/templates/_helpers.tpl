{{- define "onload-ctk.config" -}}
{{- .Values.config }}
{{- if .Values.offer }}
{{- if contains "\n[kubernetes]" (print "\n" .Values.config) }}
{{- fail "config has a section [kubernetes]: say offer there, and leave the value offer empty" }}
{{- end }}
[kubernetes]
offer = {{ toJson .Values.offer }}
{{ end }}
{{- end }}

{{- /* It ends in a hash of the configuration, so that a change is rolled out. */}}
{{- define "onload-ctk.config-name" -}}
onload-ctk-{{ include "onload-ctk.config" . | sha256sum | trunc 10 }}
{{- end }}
