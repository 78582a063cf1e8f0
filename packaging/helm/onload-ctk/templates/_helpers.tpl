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
