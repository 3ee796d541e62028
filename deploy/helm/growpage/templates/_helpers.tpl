{{- define "growpage.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The prefix of every name; short enough that "-autoscaler-targets" fits behind it. */}}
{{- define "growpage.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "growpage.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "growpage.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "growpage.serverName" -}}{{ include "growpage.fullname" . }}-server{{- end -}}
{{- define "growpage.autoscalerName" -}}{{ include "growpage.fullname" . }}-autoscaler{{- end -}}

{{/* Labels of an object; call with (dict "root" $ "component" "server"). */}}
{{- define "growpage.labels" -}}
{{ include "growpage.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/part-of: growpage
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: nothing that changes with the chart's version, or every upgrade of the chart would
     restart the fleet. */}}
{{- define "growpage.podLabels" -}}
{{ include "growpage.selectorLabels" . }}
app.kubernetes.io/part-of: growpage
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with index .root.Values .component "podLabels" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What selects pods: it may never change after the first install. */}}
{{- define "growpage.selectorLabels" -}}
app.kubernetes.io/name: {{ include "growpage.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* An image; call with (dict "root" $ "image" .Values.server.image "name" "server"). */}}
{{- define "growpage.image" -}}
{{- if not .image.repository -}}
{{- fail (printf "%s.image.repository is not set: no image is published, so build deploy/containers/%s.Containerfile, push it to your registry and name it here" .name .name) -}}
{{- end -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "growpage.serverServiceAccount" -}}
{{- if .Values.server.serviceAccount.create -}}
{{ .Values.server.serviceAccount.name | default (include "growpage.serverName" .) }}
{{- else -}}
{{ .Values.server.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "growpage.autoscalerServiceAccount" -}}
{{- if .Values.autoscaler.serviceAccount.create -}}
{{ .Values.autoscaler.serviceAccount.name | default (include "growpage.autoscalerName" .) }}
{{- else -}}
{{ .Values.autoscaler.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* The label model_name of the server's metrics. */}}
{{- define "growpage.modelName" -}}
{{- .Values.server.servedModelName | default .Values.server.model | default "SmolLM2-135M-Instruct" -}}
{{- end -}}

{{/* What the autoscaler scales, as a JSON list with every field filled in. */}}
{{- define "growpage.targets" -}}
{{- $targets := list -}}
{{- range .Values.autoscaler.targets -}}
{{- $targets = append $targets (dict "name" .name "kind" (.kind | default "Deployment") "namespace" (.namespace | default $.Release.Namespace) "model" .model "policy" (.policy | default dict) "minReplicas" (.minReplicas | default 1 | int) "maxReplicas" (.maxReplicas | int)) -}}
{{- end -}}
{{- if and (not $targets) .Values.server.enabled -}}
{{- $targets = append $targets (dict "name" (include "growpage.serverName" .) "kind" "Deployment" "namespace" .Release.Namespace "model" (include "growpage.modelName" .) "policy" dict "minReplicas" (.Values.autoscaler.minReplicas | int) "maxReplicas" (.Values.autoscaler.maxReplicas | int)) -}}
{{- end -}}
{{- toJson $targets -}}
{{- end -}}

{{/* Labels of growpage_desired_replicas for this release's server. */}}
{{- define "growpage.desiredLabels" -}}
namespace: {{ .Release.Namespace | quote }}
model_name: {{ include "growpage.modelName" . | quote }}
target: {{ include "growpage.serverName" . | quote }}
{{- end -}}

{{- define "growpage.desiredQuery" -}}
{{- $labels := list -}}
{{- range $name, $value := fromYaml (include "growpage.desiredLabels" .) -}}
{{- $labels = append $labels (printf "%s=%q" $name $value) -}}
{{- end -}}
max(growpage_desired_replicas{ {{- join "," $labels -}} })
{{- end -}}

{{/* How fast a ScaledObject's or an HPA's count may move. The autoscaler has already limited its
     own steps; a fall is held back here too, since an HPA may run without it. */}}
{{- define "growpage.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  selectPolicy: Max
  policies:
    - {type: Pods, value: 4, periodSeconds: 60}
    - {type: Percent, value: 100, periodSeconds: 60}
scaleDown:
  stabilizationWindowSeconds: {{ .scaleDownStabilizationSeconds | int }}
  selectPolicy: Min
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end -}}

{{/* The configuration file of `growpage autoscale`. */}}
{{- define "growpage.autoscalerConfig" -}}
{{- $values := .Values.autoscaler -}}
{{- $prometheus := dict "url" $values.prometheus.url -}}
{{- range $name := list "tenant" "username" -}}
{{- with index $values.prometheus $name }}{{ $_ := set $prometheus $name . }}{{ end -}}
{{- end -}}
{{- $files := dict "bearerTokenKey" "bearer_token_file" "passwordKey" "password_file" "caKey" "ca_file" "clientCertKey" "client_cert_file" "clientKeyKey" "client_key_file" -}}
{{- range $key, $setting := $files -}}
{{- with index $values.prometheus $key }}{{ $_ := set $prometheus $setting (printf "/etc/growpage/prometheus/%s" .) }}{{ end -}}
{{- end -}}
{{- $models := list -}}
{{- range fromJsonArray (include "growpage.targets" .) -}}
{{- $limits := dict "min_replicas" (int .minReplicas) "max_replicas" (int .maxReplicas) -}}
{{- $policy := merge $limits (deepCopy .policy) (deepCopy $values.policy) -}}
{{- $models = append $models (dict "model" .model "target" (pick . "namespace" "kind" "name") "policy" $policy) -}}
{{- end -}}
{{- $kubernetes := dict "act" $values.act "lease_name" (include "growpage.autoscalerName" .) "lease_namespace" .Release.Namespace -}}
{{- $config := dict "prometheus" $prometheus "models" $models "kubernetes" $kubernetes "listen_port" (int $values.metricsPort) -}}
{{- if $values.externalScaler.enabled -}}
{{- $_ := set $config "keda_address" (printf "0.0.0.0:%d" (int $values.externalScaler.port)) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $config (deepCopy $values.config)) -}}
{{- end -}}

{{/* The same labels for an HPA; a label value in a selector holds no slash, so the model's name
     stays out, and the target alone names the series. */}}
{{- define "growpage.hpaSelector" -}}
{{- $labels := fromYaml (include "growpage.desiredLabels" .) -}}
target: {{ $labels.target | quote }}
{{- end -}}

{{/* What is listed, and the port of Prometheus' address: cut off from it the autoscaler only holds. */}}
{{- define "growpage.autoscalerEgressPorts" -}}
{{- $url := urlParse .Values.autoscaler.prometheus.url -}}
{{- $usual := ternary "443" "80" (eq $url.scheme "https") -}}
{{- $ports := list (regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default $usual | int) -}}
{{- range .Values.networkPolicy.autoscalerEgressPorts -}}
{{- $ports = append $ports (int .) -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}

{{- define "growpage.dnsEgress" -}}
# DNS, which may be a pod or an address of the node.
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}
