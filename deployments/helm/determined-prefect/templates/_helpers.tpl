{{/* Names */}}
{{- define "det.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* A pool's name as a part of names of objects; another pool has another one. */}}
{{- define "det.poolName" -}}
{{- $plain := . | lower | replace "_" "-" | replace "." "-" | replace " " "-" -}}
{{- if and (eq $plain .) (regexMatch "^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$" $plain) -}}
{{- $plain -}}
{{- else -}}
{{- printf "p-%s" (sha256sum . | trunc 10) -}}
{{- end -}}
{{- end -}}

{{- define "det.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Of one component: (list $ "service") */}}
{{- define "det.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* (list $ "service") */}}
{{- define "det.image" -}}
{{- $root := index . 0 -}}
{{- $registry := $root.Values.imageRegistry | trimSuffix "/" -}}
{{- if $registry }}{{ $registry }}/{{ end }}determined-prefect/{{ index . 1 }}:{{ $root.Values.detVersion | default $root.Chart.AppVersion }}
{{- end -}}

{{- define "det.secretName" -}}
{{ .Values.existingSecret | default (printf "%s-secrets" (include "det.fullname" .)) }}
{{- end -}}

{{/* Addresses. With hostNetwork there is one address for all. */}}
{{- define "det.listen" -}}
{{ ternary .Values.hostNetwork.address "0.0.0.0" .Values.hostNetwork.enabled }}
{{- end -}}
{{- define "det.host" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.hostNetwork.enabled -}}
{{ $root.Values.hostNetwork.address }}
{{- else -}}
{{ include "det.fullname" $root }}{{ index . 1 }}.{{ $root.Release.Namespace }}.svc
{{- end -}}
{{- end -}}
{{- define "det.masterUrl" -}}
http://{{ include "det.host" (list . "") }}:{{ .Values.masterPort }}
{{- end -}}
{{- define "det.prefectUrl" -}}
http://{{ include "det.host" (list . "-prefect") }}:{{ .Values.prefect.port }}/api
{{- end -}}
{{- define "det.publicUrl" -}}
{{- if .Values.publicUrl -}}
{{ .Values.publicUrl }}
{{- else if .Values.ingress.enabled -}}
{{ ternary "https" "http" (ne .Values.tlsSecret "") }}://{{ .Values.ingress.host }}
{{- else -}}
http://localhost:{{ .Values.masterPort }}
{{- end -}}
{{- end -}}

{{/* "own": the small Postgres of this chart */}}
{{- define "det.dbKind" -}}
{{- if .Values.db.urlSecret }}secret{{ else if .Values.db.hostAddress }}host{{ else }}own{{ end -}}
{{- end -}}

{{/* The certificate of the authority of a Postgres that is yours: a variable that all drivers read, a volume, a mount */}}
{{- define "det.hasDbCert" -}}
{{- if and .Values.db.certResourceName (ne (include "det.dbKind" .) "own") }}yes{{ end -}}
{{- end -}}
{{- define "det.dbCertEnv" -}}
- {name: PGSSLROOTCERT, value: /db-cert/root.crt}
{{- end -}}
{{- define "det.dbCertMount" -}}
- {name: db-cert, mountPath: /db-cert, readOnly: true}
{{- end -}}
{{- define "det.dbCertVolume" -}}
{{- $items := list (dict "key" .Values.db.sslRootCert "path" "root.crt") -}}
- name: db-cert
{{- if eq .Values.db.resourceType "configMap" }}
  configMap: {{ dict "name" .Values.db.certResourceName "items" $items "defaultMode" 0444 | toJson }}
{{- else }}
  secret: {{ dict "secretName" .Values.db.certResourceName "items" $items "defaultMode" 0444 | toJson }}
{{- end }}
{{- end -}}

{{/* Where Prefect's processes have their Redis: "" (none), "value" or "secret" */}}
{{- define "det.redisKind" -}}
{{- $redis := .Values.prefect.redis -}}
{{- if $redis.urlSecret }}secret
{{- else if $redis.url -}}
{{- if .Values.existingSecret }}{{ fail "prefect.redis.url: with existingSecret no Secret is made that could hold it; name one with the key url in prefect.redis.urlSecret" }}{{ end -}}
value
{{- else if gt (int .Values.prefect.replicas) 1 -}}
{{- fail (printf "prefect.replicas: %d processes of Prefect's server need a Redis between them, or each would tell its events to itself; give prefect.redis.url or prefect.redis.urlSecret, or replicas: 1" (int .Values.prefect.replicas)) -}}
{{- end -}}
{{- end -}}

{{/* What is mounted as files where settings are filled: (list $ (list KEY…) WITH_DB) */}}
{{- define "det.secretsVolume" -}}
{{- $root := index . 0 -}}
{{- $keys := index . 1 -}}
{{- $db := index . 2 -}}
{{- $kind := include "det.dbKind" $root -}}
{{- /* Who reads the service's settings reads Redis' address in them: not agents, nor Postgres. */ -}}
{{- $redis := "" -}}
{{- if and $db $keys }}{{ $redis = include "det.redisKind" $root }}{{ end -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "det.secretName" $root }}
          items:
            {{- range $keys }}
            - {key: {{ . }}, path: {{ . }}}
            {{- end }}
            {{- if and $db (eq $kind "own") }}
            {{- range list "determined" "prefect" "mlflow" }}
            - {key: db-{{ . }}-password, path: db-{{ . }}-password}
            {{- end }}
            {{- else if and $db (eq $kind "host") }}
            - {key: db-password, path: db-password}
            {{- end }}
            {{- if eq $redis "value" }}
            - {key: prefect-redis-url, path: prefect-redis-url}
            {{- end }}
      {{- if eq $redis "secret" }}
      - secret:
          name: {{ $root.Values.prefect.redis.urlSecret }}
          items: [{key: url, path: prefect-redis-url}]
      {{- end }}
      {{- if and $db (eq $kind "secret") }}
      - secret:
          name: {{ $root.Values.db.urlSecret }}
          items:
            - {key: url, path: db-url}
            - {key: prefect-url, path: db-prefect-url}
            {{- if $root.Values.db.mlflowUrl }}
            - {key: mlflow-url, path: db-mlflow-url}
            {{- end }}
      {{- end }}
{{- end -}}

{{/* Pods and containers of the release: no root, nothing that may be written but volumes */}}
{{- define "det.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAsUser }}
runAsGroup: {{ .Values.runAsGroup }}
fsGroup: {{ .Values.runAsGroup }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}
{{- define "det.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
{{- define "det.podBasics" -}}
{{- if .Values.hostNetwork.enabled }}
hostNetwork: true
{{- end }}
# Variables such as PREFECT_PORT of other Services are not to be taken for settings.
enableServiceLinks: false
{{- with .Values.imagePullSecretName }}
imagePullSecrets: [{name: {{ . }}}]
{{- end }}
{{- end -}}
{{/* (dict "nodeSelector" … "tolerations" …) */}}
{{- define "det.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end -}}

{{/* Of several pods of one component no two on one node, where that can be: (list $ "service") */}}
{{- define "det.apart" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "det.selector" . | nindent 14 }}
{{- end -}}
{{/* One process is enough while nodes are drained: (list $ NAME COMPONENT) */}}
{{- define "det.budget" -}}
{{- $root := index . 0 -}}
apiVersion: {{ ternary "policy/v1" "policy/v1beta1" (semverCompare ">=1.21-0" $root.Capabilities.KubeVersion.Version) }}
kind: PodDisruptionBudget
metadata:
  name: {{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "det.labels" $root | nindent 4 }}
spec:
  minAvailable: 1
  selector:
    matchLabels: {{- include "det.selector" (list $root (index . 2)) | nindent 6 }}
{{- end -}}

{{/* (list $ PORT PATH) */}}
{{- define "det.httpProbe" -}}
{{- $root := index . 0 -}}
httpGet:
  path: {{ index . 2 }}
  port: {{ index . 1 }}
  {{- if $root.Values.hostNetwork.enabled }}
  host: {{ $root.Values.hostNetwork.address }}
  {{- end }}
{{- end -}}

{{/* The pools, as the cluster configuration and the agents see them */}}
{{- define "det.tasksNamespace" -}}
{{ .Values.tasksNamespace.name | default (printf "%s-tasks" .Release.Namespace) }}
{{- end -}}
{{/* (list $ POOL) */}}
{{- define "det.poolNamespace" -}}
{{- $root := index . 0 -}}
{{- $found := (index . 1).kubernetes_namespace | default (include "det.tasksNamespace" $root) -}}
{{- if eq $found $root.Release.Namespace -}}
{{- fail (printf "resourcePools: pool %s: its tasks would run in the namespace of the release, %s, and could mount its Secrets; name another one" (index . 1).pool_name $found) -}}
{{- end -}}
{{- $found -}}
{{- end -}}
{{/* JSON: the pools that have an agent of this chart */}}
{{- define "det.agentPools" -}}
{{- $found := list -}}
{{- range .Values.resourcePools -}}
{{- $agent := .agent | default dict -}}
{{- if or (not (hasKey $agent "enabled")) $agent.enabled -}}
{{- $found = append $found . -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
{{/* JSON: the namespaces of their tasks, each once */}}
{{- define "det.namespaces" -}}
{{- $root := . -}}
{{- $found := list -}}
{{- range fromJsonArray (include "det.agentPools" .) -}}
{{- $found = append $found (include "det.poolNamespace" (list $root .)) -}}
{{- end -}}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* Checkpoints as files, in a volume that the service, the agents and tasks mount: its claim, or a folder of nodes */}}
{{- define "det.hasFolder" -}}
{{- if has .Values.checkpointStorage.type (list "shared_fs" "directory") }}yes{{ end -}}
{{- end -}}
{{- define "det.storagePath" -}}
{{ required "checkpointStorage: name the folder (hostPath, or container_path of type directory)" (.Values.checkpointStorage.hostPath | default .Values.checkpointStorage.container_path) }}
{{- end -}}
{{- define "det.storageVolume" -}}
name: checkpoints
{{- if .Values.checkpointStorage.claim }}
persistentVolumeClaim: {claimName: {{ .Values.checkpointStorage.claim }}}
{{- else }}
{{- if and .Values.tasksNamespace.create (has .Values.tasksNamespace.podSecurity (list "baseline" "restricted")) }}
{{- fail (printf "checkpointStorage: without claim, %s is a folder of nodes, which tasksNamespace.podSecurity: %s forbids; name a ReadWriteMany claim, use an object storage, or set podSecurity to \"\"" (include "det.storagePath" .) .Values.tasksNamespace.podSecurity) }}
{{- end }}
hostPath: {path: {{ include "det.storagePath" . }}, type: DirectoryOrCreate}
{{- end }}
{{- end -}}

{{/* A pod_spec with the volume of checkpoints in it, beside what it has itself: (list $ POD_SPEC) */}}
{{- define "det.withStorage" -}}
{{- $root := index . 0 -}}
{{- $pod := deepCopy (index . 1) -}}
{{- $spec := $pod.spec | default dict -}}
{{- $mount := dict "name" "checkpoints" "mountPath" (include "det.storagePath" $root) -}}
{{- $containers := list -}}
{{- $ours := dict "name" "determined-container" -}}
{{- range $spec.containers -}}
{{- if eq .name "determined-container" }}{{ $ours = . }}{{ else }}{{ $containers = append $containers . }}{{ end -}}
{{- end -}}
{{- $_ := set $ours "volumeMounts" (append ($ours.volumeMounts | default list) $mount) -}}
{{- $_ := set $spec "containers" (append $containers $ours) -}}
{{- $_ := set $spec "volumes" (append ($spec.volumes | default list) (fromYaml (include "det.storageVolume" $root))) -}}
{{- $_ := set $pod "spec" $spec -}}
{{- toJson $pod -}}
{{- end -}}
