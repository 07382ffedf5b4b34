"""Configurations that several tests of the configuration use."""

from typing import Any

STORAGE: dict[str, Any] = {"checkpoint_storage": {"type": "shared_fs", "host_path": "/ckpt"}}

MINIMAL = """\
entrypoint: python3 train.py
searcher:
  name: single
  metric: loss
"""

#: name -> a configuration that a user may submit to a cluster with a default storage
VALID: dict[str, str] = {
    "minimal": MINIMAL,
    "older form, single": """\
name: const
entrypoint: [python3, -m, train, --fast]
hyperparameters: {lr: 1e-3, layers: [64, 64], dropout: null}
searcher: {name: single, metric: loss, max_length: {batches: 100}}
""",
    "older form, unitless": """\
entrypoint: model_def:Trial
searcher: {name: random, metric: accuracy, smaller_is_better: false, max_trials: 16,
           max_concurrent_trials: 0, max_length: 1e2}
hyperparameters:
  global_batch_size: 64
  lr: {type: log, base: 10, minval: -5, maxval: -1}
  model:
    depth: {type: int, minval: 1, maxval: 8}
    kind: {type: categorical, vals: [a, 1, null, [2], {b: c}]}
    nothing: {type: const, val: null}
    empty: {}
""",
    "grid with counts everywhere": """\
entrypoint: python3 train.py
searcher: {name: grid, metric: loss}
hyperparameters:
  a: {type: double, minval: 0, maxval: 1, count: 3}
  b: {c: [{type: int, minval: 0, maxval: 9, count: 2}, {type: categorical, vals: [{type: int}]}]}
""",
    "ASHA, older form": """\
entrypoint: python3 train.py
searcher:
  name: adaptive_asha
  metric: loss
  mode: aggressive
  divisor: 3
  max_trials: 64
  max_rungs: 4
  bracket_rungs: [2, 3]
  stop_once: true
  max_length: {epochs: 9}
  source_trial_id: 7
""",
    "ASHA, newer form": """\
entrypoint: python3 train.py
searcher: {name: async_halving, metric: loss, num_rungs: 3, max_trials: 9,
           time_metric: batches, max_time: 900, source_checkpoint_uuid: abc}
""",
    "custom searcher with its own fields": """\
entrypoint: python3 train.py
searcher: {name: custom, metric: loss, unit: batches, anything: {goes: here}}
""",
    "everything else": """\
version: 0
name: digits
description: all sections
labels: [one, two, one]
workspace: Vision
project: Digits
data: {url: /data, nested: {null_is_kept: null}}
debug: true
entrypoint: python3 train.py
max_restarts: 0
scheduling_unit: 10
records_per_epoch: 1000
perform_initial_validation: true
checkpoint_policy: none
min_validation_period: {records: 5}
min_checkpoint_period: {epochs: 1}
preemption_timeout: 60
reproducibility: {experiment_seed: 4294967295}
hyperparameters: {}
searcher: {name: single, metric: loss}
checkpoint_storage: {type: s3, bucket: b, access_key: k, secret_key: s, prefix: a/b, save_trial_best: 2}
bind_mounts:
- {host_path: /data, container_path: /data, read_only: true}
- {host_path: /code, container_path: code, propagation: rslave}
environment:
  image: {cpu: a, cuda: b}
  environment_variables: {cpu: [A=1, EMPTY=], rocm: ["B=x=y"]}
  proxy_ports: [{proxy_port: 8265}]
  ports: {debugger: 5678}
  force_pull_image: true
  registry_auth: {username: u, password: p}
  add_capabilities: [CAP_SYS_PTRACE]
  pod_spec: {spec: {containers: [{name: determined-container, env: [{name: A, value: b}]},
                                 {name: side, image: sidecar}]}}
resources: {slots_per_trial: 2, max_slots: 8, weight: 2, priority: 50, resource_pool: gpu,
            shm_size: 1.5 GiB, devices: ["/dev/a:/dev/b:rw", {host_path: /c, container_path: /d}]}
optimizations: {aggregation_frequency: 2, mixed_precision: O1, grad_updates_size_file: x}
profiling: {enabled: true, begin_on_batch: 5, end_after_batch: 5}
log_policies: [{name: mine, pattern: "a+b", action: cancel_retries},
               {pattern: x, action: {type: exclude_node}}]
retention_policy: {log_retention_days: -1}
integrations:
  pachyderm: {pachd: {host: h, port: 80}, dataset: {repo: r, token: t}}
  webhooks: {webhook_id: [1], webhook_name: [w]}
slurm: {slots_per_node: 4, sbatch_args: [--mem=1G]}
pbs: {pbsbatch_args: [-V]}
""",
    "older names": """\
entrypoint: train:Trial
labels: {one: true, two: null, off: false}
searcher: {name: single, metric: loss, max_length: {records: 5}}
environment:
  image: {gpu: i, cpu: j}
  environment_variables: {gpu: [A=b], cpu: []}
resources: {agent_label: x, slots: 3, native_parallel: false}
data_layer: {type: s3, bucket: b}
tensorboard_storage: {type: shared_fs, host_path: /tb}
security: {kerberos: {config_file: /etc/krb5.conf}}
internal: null
""",
    "null is absent": """\
name:
description: null
entrypoint: python3 train.py
hyperparameters: ~
searcher: {name: random, metric: loss, max_trials: 2, max_length: null, source_trial_id: null}
resources: null
environment: {image: null, environment_variables: null, ports: null}
bind_mounts: null
reproducibility: {experiment_seed: null}
""",
    "storage: directory": MINIMAL + "checkpoint_storage: {type: directory, container_path: /mnt}\n",
    "storage: gcs": MINIMAL
    + "checkpoint_storage: {type: gcs, bucket: b, prefix: p, pack_small_files: true}\n",
    "storage: azure": MINIMAL
    + "checkpoint_storage: {type: azure, container: c, account_url: u, credential: x}\n",
    "storage: hdfs": MINIMAL
    + "checkpoint_storage: {type: hdfs, hdfs_url: 'hdfs://h:9000', hdfs_path: /p}\n",
    "storage: inside the shared directory": MINIMAL
    + "checkpoint_storage: {type: shared_fs, host_path: /a/b, storage_path: /a/b/c}\n",
}
