{{- define "turnbuckle.image" -}}
{{- if .root.Values.registry }}{{ trimSuffix "/" .root.Values.registry }}/{{ end }}{{ .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag }}{{ end }}
{{- end }}
