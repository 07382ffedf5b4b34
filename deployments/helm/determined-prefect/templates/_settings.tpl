{{/* The settings file of the service, Prefect's server and the migrations; $(…) are filled from Secrets when the
     pod starts (determined_deployments.filled_settings). */}}
{{- define "det.serviceSettings" -}}
{{- $kind := include "det.dbKind" . -}}
{{- $found := dict
    "host" (include "det.listen" .)
    "port" (int .Values.masterPort)
    "public_url" (include "det.publicUrl" .)
    "prefect_api_url" (include "det.prefectUrl" .)
    "prefect_auth" "$(prefect-auth)"
    "data_dir" "/data"
    "cluster_id" "$(cluster-id)"
    "cluster_name" .Values.clusterName
    "agent_token" "$(agent-token)"
    "bootstrap_passwords" (dict "admin" "$(initial-user-password)" "determined" "$(initial-user-password)")
    "cluster_config_file" "/settings/cluster.yaml" -}}
{{- if eq $kind "own" -}}
{{- $server := printf "%s:%d" (include "det.host" (list . "-postgres")) (int .Values.db.port) -}}
{{- $_ := set $found "db_url" (printf "postgresql://determined_owner:$(url:db-determined-password)@%s/determined" $server) -}}
{{- $_ := set $found "mlflow_db_url" (printf "postgresql://mlflow_reader:$(url:db-mlflow-password)@%s/determined" $server) -}}
{{- $_ := set $found "prefect_db_url" (printf "postgresql://prefect_owner:$(url:db-prefect-password)@%s/prefect" $server) -}}
{{- else if eq $kind "host" -}}
{{- if and (hasPrefix "verify-" .Values.db.sslMode) (not .Values.db.certResourceName) -}}
{{- fail (printf "db.sslMode: %s needs the certificate of the authority that has signed the server's: name the secret or configMap that has it in db.certResourceName (with its key in db.sslRootCert, and db.resourceType)" .Values.db.sslMode) -}}
{{- end -}}
{{- $server := printf "postgresql://%s:$(url:db-password)@%s:%d" (urlquery .Values.db.user) .Values.db.hostAddress (int .Values.db.port) -}}
{{- $options := printf "?sslmode=%s" .Values.db.sslMode -}}
{{- $_ := set $found "db_url" (printf "%s/%s%s" $server .Values.db.name $options) -}}
{{- $_ := set $found "prefect_db_url" (printf "%s/%s%s" $server .Values.db.prefectName $options) -}}
{{- else -}}
{{- $_ := set $found "db_url" "$(db-url)" -}}
{{- $_ := set $found "prefect_db_url" "$(db-prefect-url)" -}}
{{- if .Values.db.mlflowUrl -}}
{{- $_ := set $found "mlflow_db_url" "$(db-mlflow-url)" -}}
{{- end -}}
{{- end -}}
{{- if include "det.redisKind" . -}}
{{- $_ := set $found "prefect_redis_url" "$(prefect-redis-url)" -}}
{{- end -}}
{{- with .Values.ingress -}}
{{- if .enabled -}}
{{- if not .host }}{{ fail "ingress.host: the name under which people reach the service" }}{{ end -}}
{{- if not .trustedProxies }}{{ fail "ingress.trustedProxies: name the networks of the ingress controller's pods, such as [10.244.0.0/16]; else all people are one address to the service, and its cookies are not Secure" }}{{ end -}}
{{- $_ := set $found "trusted_proxies" .trustedProxies -}}
{{- if .taskHosts -}}
{{- $_ := set $found "proxy_host" (printf "%s://%s" (ternary "https" "http" (ne $.Values.tlsSecret "")) .taskHosts) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- mustMergeOverwrite $found (deepCopy .Values.service.settings) | mustToPrettyJson -}}
{{- end -}}

{{/* The cluster configuration */}}
{{- define "det.clusterConfig" -}}
{{- $found := dict -}}
{{- $pools := list -}}
{{- range .Values.resourcePools -}}
{{- $pools = append $pools (omit . "agent" "kubernetes_namespace") -}}
{{- end -}}
{{- $_ := set $found "resource_pools" $pools -}}
{{- $_ := set $found "resource_manager" (mustMerge (deepCopy .Values.resourceManager) (dict "type" "kubernetes")) -}}
{{- with .Values.taskContainerDefaults }}{{ $_ := set $found "task_container_defaults" . }}{{ end -}}
{{- with .Values.quotas }}{{ $_ := set $found "quotas" . }}{{ end -}}
{{- with .Values.checkpointStorage -}}
{{- $storage := dict -}}
{{- range $key, $value := omit . "claim" -}}
{{- $_ := set $storage (snakecase $key) $value -}}
{{- end -}}
{{- $_ := set $found "checkpoint_storage" $storage -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The agent's settings: (list $ POOL) */}}
{{- define "det.agentSettings" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
{{- $agent := $pool.agent | default dict -}}
{{- $kubernetes := dict
    "namespace" (include "det.poolNamespace" (list $root $pool))
    "service_account" (printf "%s-task" (include "det.fullname" $root))
    "harness_image" (include "det.image" (list $root "harness")) -}}
{{- with $root.Values.imagePullSecretName }}{{ $_ := set $kubernetes "image_pull_secrets" (list .) }}{{ end -}}
{{- with $root.Values.slotResourceRequests.cpu }}{{ $_ := set $kubernetes "slot_resources" (dict "cpu" (toString .)) }}{{ end -}}
{{- if $root.Values.agents.kubeconfigSecret }}{{ $_ := set $kubernetes "kubeconfig" "/kubeconfig/kubeconfig" }}{{ end -}}
{{- $kubernetes = mustMergeOverwrite $kubernetes (deepCopy ($agent.kubernetes | default dict)) -}}
{{- if include "det.hasFolder" $root -}}
{{- $_ := set $kubernetes "pod_spec" (fromJson (include "det.withStorage" (list $root ($kubernetes.pod_spec | default dict)))) -}}
{{- end -}}
{{- $image := include "det.image" (list $root "harness") -}}
{{- $found := dict
    "agent_id" (printf "%s-%s" (include "det.fullname" $root) (include "det.poolName" $pool.pool_name))
    "resource_pool" $pool.pool_name
    "launcher" "kubernetes"
    "slot_type" ($agent.slotType | default $root.Values.slotType)
    "master_url" (include "det.masterUrl" $root)
    "agent_token" "$(agent-token)"
    "prefect_api_url" (include "det.prefectUrl" $root)
    "prefect_auth" "$(prefect-auth)"
    "work_dir" "/data/agent"
    "container" (dict "images" (dict "cpu" $image "cuda" $image "rocm" $image))
    "security" (dict "default_task" (dict "uid" (int $root.Values.agents.taskUid) "gid" (int $root.Values.agents.taskGid)))
    "kubernetes" $kubernetes -}}
{{- mustMergeOverwrite $found (deepCopy ($agent.settings | default dict)) | mustToPrettyJson -}}
{{- end -}}
