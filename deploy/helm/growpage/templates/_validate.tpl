{{/* What the schema cannot say: settings that contradict each other. */}}
{{- define "growpage.validate" -}}
{{- $server := .Values.server -}}
{{- $autoscaler := .Values.autoscaler -}}
{{- if not (or $server.enabled $autoscaler.enabled) -}}
{{- fail "server.enabled and autoscaler.enabled are both false: there is nothing to install, so turn one on" -}}
{{- end -}}

{{- /* One writer of the replica count. */ -}}
{{- if and .Values.scaledObject.enabled .Values.hpa.enabled -}}
{{- fail "scaledObject.enabled and hpa.enabled are both true: KEDA makes an HPA of its own and the two would fight over the replicas, so turn one off" -}}
{{- end -}}
{{- $owner := ternary "scaledObject" (ternary "hpa" "" .Values.hpa.enabled) .Values.scaledObject.enabled -}}
{{- if and $owner $autoscaler.enabled $autoscaler.act -}}
{{- fail (printf "autoscaler.act and %s.enabled are both true: two controllers would fight over the replicas, so set autoscaler.act to false (the %s then follows the autoscaler) or turn the %s off" $owner $owner $owner) -}}
{{- end -}}
{{- if and $owner (not $server.enabled) -}}
{{- fail (printf "%s.enabled is true but server.enabled is false: the %s scales this release's server, so there is nothing to scale" $owner $owner) -}}
{{- end -}}
{{- $scaled := or $owner (and $autoscaler.enabled $autoscaler.act) -}}
{{- if and $scaled (not (kindIs "invalid" $server.replicas)) -}}
{{- fail (printf "server.replicas is %d, but %s sets the number of replicas and every upgrade would undo it: leave server.replicas unset (null)" (int $server.replicas) ($owner | default "autoscaler.act")) -}}
{{- end -}}
{{- range $name := list "scaledObject" "hpa" "autoscaler" -}}
{{- $limits := index $.Values $name -}}
{{- if and $limits.enabled (gt (int $limits.minReplicas) (int $limits.maxReplicas)) -}}
{{- fail (printf "%s.minReplicas is %d, but must be at most %s.maxReplicas, %d" $name (int $limits.minReplicas) $name (int $limits.maxReplicas)) -}}
{{- end -}}
{{- end -}}

{{- if $server.enabled -}}
{{- /* A pod that drains longer than its grace period is killed with requests in flight. */ -}}
{{- $needed := add $server.preStopSeconds $server.shutdownTimeoutSeconds 10 | int -}}
{{- if lt (int $server.terminationGracePeriodSeconds) $needed -}}
{{- fail (printf "server.terminationGracePeriodSeconds is %d, but must be at least %d: preStopSeconds + shutdownTimeoutSeconds, and 10 for vLLM to end; else requests are killed while they finish" (int $server.terminationGracePeriodSeconds) $needed) -}}
{{- end -}}
{{- $owned := dict "--shutdown-timeout" "server.shutdownTimeoutSeconds" "--port" "server.service.port" "--served-model-name" "server.servedModelName" "--api-key" "server.apiKey.existingSecret (an argument can be read by everyone who may see the pod)" "--model" "server.model" -}}
{{- range $server.extraArgs -}}
{{- $flag := index (splitList "=" .) 0 | replace "_" "-" -}}
{{- if hasKey $owned $flag -}}
{{- fail (printf "server.extraArgs has %s: set it with %s" $flag (index $owned $flag)) -}}
{{- end -}}
{{- if hasPrefix "--growpage-" $flag -}}
{{- fail (printf "server.extraArgs has %s: settings of the budget belong in server.growpage; server.rollout, server.livePage and server.metrics are for the others" $flag) -}}
{{- end -}}
{{- end -}}
{{- $cache := $server.cache.persistence -}}
{{- $many := or $scaled (gt (int ($server.replicas | default 1)) 1) -}}
{{- if and $cache.enabled $many (hasPrefix "ReadWriteOnce" $cache.accessMode) -}}
{{- fail (printf "server.cache.persistence.accessMode is %s, but several replicas share the volume: use ReadWriteMany, or turn persistence off" $cache.accessMode) -}}
{{- end -}}
{{- if and (eq $server.strategy.type "Recreate") $server.strategy.rollingUpdate -}}
{{- fail "server.strategy.type is Recreate, but server.strategy.rollingUpdate is set: set it to null" -}}
{{- end -}}
{{- end -}}

{{- if $autoscaler.enabled -}}
{{- if not $autoscaler.prometheus.url -}}
{{- fail "autoscaler.prometheus.url is not set: the autoscaler decides from Prometheus, so name it, such as http://prometheus-operated.monitoring.svc:9090" -}}
{{- end -}}
{{- if not (or $server.enabled $autoscaler.targets) -}}
{{- fail "autoscaler.targets is empty and server.enabled is false: name what the autoscaler is to watch" -}}
{{- end -}}
{{- range $autoscaler.targets -}}
{{- if gt (int (.minReplicas | default 1)) (int .maxReplicas) -}}
{{- fail (printf "autoscaler.targets: %s has minReplicas %d, but it must be at most its maxReplicas, %d" .name (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- $prometheus := $autoscaler.prometheus -}}
{{- range list "bearerTokenKey" "passwordKey" "caKey" "clientCertKey" "clientKeyKey" -}}
{{- if and (index $prometheus .) (not $prometheus.existingSecret) -}}
{{- fail (printf "autoscaler.prometheus.%s is set, but autoscaler.prometheus.existingSecret is not: name the Secret that holds the key %s" . (index $prometheus .)) -}}
{{- end -}}
{{- end -}}
{{- if and $prometheus.bearerTokenKey $prometheus.passwordKey -}}
{{- fail "autoscaler.prometheus has a bearer token and a password: a request carries one of them, so set one" -}}
{{- end -}}
{{- if ne (empty $prometheus.username) (empty $prometheus.passwordKey) -}}
{{- fail "autoscaler.prometheus.username and passwordKey go together: set both or neither" -}}
{{- end -}}
{{- if ne (empty $prometheus.clientCertKey) (empty $prometheus.clientKeyKey) -}}
{{- fail "autoscaler.prometheus.clientCertKey and clientKeyKey go together: set both or neither" -}}
{{- end -}}
{{- end -}}

{{- with .Values.scaledObject -}}
{{- if and .enabled (eq .trigger "external") -}}
{{- if not (or .external.scalerAddress (and $autoscaler.enabled $autoscaler.externalScaler.enabled)) -}}
{{- fail "scaledObject.trigger is external, but nothing answers it: set autoscaler.enabled and autoscaler.externalScaler.enabled, or name scaledObject.external.scalerAddress" -}}
{{- end -}}
{{- else if .enabled -}}
{{- if not (or .prometheus.serverAddress $autoscaler.prometheus.url) -}}
{{- fail "scaledObject.prometheus.serverAddress is not set: KEDA reads the query from Prometheus, so name it, such as http://prometheus-operated.monitoring.svc:9090" -}}
{{- end -}}
{{- if not (or .prometheus.query $autoscaler.enabled) -}}
{{- fail "scaledObject.enabled is true, but autoscaler.enabled is false, so nobody exports growpage_desired_replicas: turn the autoscaler on, or set scaledObject.prometheus.query" -}}
{{- end -}}
{{- include "growpage.refuseRawCounter" (dict "text" .prometheus.query "name" "scaledObject.prometheus.query") -}}
{{- end -}}
{{- if and .enabled (not (kindIs "invalid" .fallback.replicas)) -}}
{{- if or (lt (int .fallback.replicas) (int .minReplicas)) (gt (int .fallback.replicas) (int .maxReplicas)) -}}
{{- fail (printf "scaledObject.fallback.replicas is %d, but must be between minReplicas, %d, and maxReplicas, %d" (int .fallback.replicas) (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- with .Values.hpa -}}
{{- if and .enabled (not .metrics) (not $autoscaler.enabled) -}}
{{- fail "hpa.metrics is empty and autoscaler.enabled is false, so nobody exports growpage_desired_replicas: turn the autoscaler on, or set hpa.metrics" -}}
{{- end -}}
{{- range .metrics -}}
{{- $source := .external | default .pods | default .object | default dict -}}
{{- $metric := dig "metric" "name" "" $source -}}
{{- if hasSuffix "_total" $metric -}}
{{- fail (printf "hpa.metrics names the counter %s, which only ever grows: let the metrics adapter offer its rate() under another name" $metric) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if .Values.podDisruptionBudget.enabled -}}
{{- if eq (kindIs "invalid" .Values.podDisruptionBudget.maxUnavailable) (kindIs "invalid" .Values.podDisruptionBudget.minAvailable) -}}
{{- fail "podDisruptionBudget needs exactly one of maxUnavailable and minAvailable: set the other to null" -}}
{{- end -}}
{{- end -}}
{{- if and (or .Values.server.podLabels .Values.autoscaler.podLabels .Values.commonLabels) -}}
{{- range $labels := list $server.podLabels $autoscaler.podLabels .Values.commonLabels -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- if hasKey $labels $label -}}
{{- fail (printf "the label %s selects this chart's pods: it cannot be set in commonLabels or podLabels" $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuse a query on a counter outside rate() and its kin. */}}
{{- define "growpage.refuseRawCounter" -}}
{{- if and (regexMatch "_total\\b" .text) (not (regexMatch "\\b(rate|irate|increase)\\s*\\(" .text)) -}}
{{- fail (printf "%s reads a counter as it is, which only ever grows: put it in rate()" .name) -}}
{{- end -}}
{{- end -}}
