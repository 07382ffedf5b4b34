"""A cluster's past as rows: many experiments, one of many trials, one trial of many points and log lines."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

CONFIG = """
name: large
entrypoint: python3 train.py
description: one of many
labels: [vision, baseline]
hyperparameters:
  lr: {type: log, base: 10, minval: -5, maxval: 0}
  batch_size: {type: int, minval: 8, maxval: 512}
  optimizer: {type: categorical, vals: [adam, sgd]}
  width: 64
searcher: {name: random, metric: loss, max_length: 8, max_trials: 20000, max_concurrent_trials: 1}
checkpoint_storage: {type: shared_fs, host_path: /tmp}
"""


@dataclass(frozen=True)
class Sizes:
    """How much there is.

    Attributes:
        experiments: each with two trials, beside the one of which they are copies.
        trials: of experiment 1.
        curves: how many of these have ``points`` validations; the first has ``long`` training reports, and
            as many log lines as ``lines``.
    """

    experiments: int = 50_000
    trials: int = 10_000
    curves: int = 200
    points: int = 300
    long: int = 1_000_000
    lines: int = 1_000_000


_COPY = """
INSERT INTO experiments (state, name, description, labels, config, original_config, owner_id, archived,
                         progress, start_time, end_time, project_id, resource_pool)
SELECT (ARRAY['COMPLETED', 'COMPLETED', 'COMPLETED', 'ERROR', 'CANCELED', 'PAUSED'])[1 + n %% 6],
       'search ' || n || ' of ' || (ARRAY['resnet', 'bert', 'unet', 'gpt'])[1 + n %% 4],
       e.description || ' ' || md5(n::text), jsonb_build_array('label-' || n %% 97, 'vision'),
       jsonb_set(e.config, '{hyperparameters,width,val}', to_jsonb(n %% 512)), e.original_config,
       1 + n %% 2, n %% 10 = 0, 1, now() - n * interval '1 minute', now() - n * interval '30 seconds',
       e.project_id, e.resource_pool
FROM experiments e, generate_series(1, %(experiments)s) n WHERE e.id = 1
"""
_TRIALS = (
    # The first trial of the search, as if it had run.
    """
    UPDATE trials SET searcher_metric_value = 0.5, state = 'COMPLETED', op_complete = true, closed = true,
                      run_count = 1, end_time = now()
    """,
    """
    CREATE TEMPORARY TABLE planned AS
    SELECT 1 AS experiment_id, n, 'bulk-' || n AS request_id FROM generate_series(1, %(trials)s) n
    UNION ALL
    SELECT e.id, n, 'bulk-' || n FROM experiments e, generate_series(1, 2) n WHERE e.id > 1
    """,
    """
    INSERT INTO tasks (id, kind, owner_id, flow_run_id)
    SELECT experiment_id || '.' || request_id, 'TRIAL', 1, gen_random_uuid() FROM planned
    """,
    """
    INSERT INTO trials (experiment_id, request_id, task_id, state, reason, hparams, seed, op_complete, closed,
                        run_count, searcher_metric_value, end_time, progress, steps_completed)
    SELECT experiment_id, request_id, experiment_id || '.' || request_id, 'COMPLETED', 'completed',
           jsonb_build_object('lr', 10 ^ (-5 * random()), 'batch_size', 8 + n %% 500, 'width',
                              (experiment_id * 7 + n) %% 512,
                              'optimizer', (ARRAY['adam', 'sgd'])[1 + n %% 2]),
           n, true, true, 1, random(), now(), 1, 100
    FROM planned
    """,
    """
    INSERT INTO legs (task_id, run_id, state, reason, start_time, end_time)
    SELECT task_id, 1, 'COMPLETED', 'completed', now() - interval '1 hour', now() FROM trials
    """,
    """
    INSERT INTO metrics (trial_id, run_id, group_name, steps_completed, metrics, end_time)
    SELECT t.id, 1, 'validation', step * 10,
           jsonb_build_object('loss', t.searcher_metric_value + 1.0 / step, 'accuracy', 1 - 1.0 / step),
           now() - (%(points)s - step) * interval '10 seconds'
    FROM (SELECT * FROM trials WHERE experiment_id = 1 ORDER BY id LIMIT %(curves)s) t,
         generate_series(1, %(points)s) step
    """,
    """
    INSERT INTO metrics (trial_id, run_id, group_name, steps_completed, metrics, end_time)
    SELECT t.id, 1, 'validation', %(points)s * 10 + 10,
           jsonb_build_object('loss', t.searcher_metric_value, 'accuracy', 0.5), now()
    FROM trials t
    """,
    """
    UPDATE trials t SET latest_validation_id = m.id, best_validation_id = m.id
    FROM metrics m WHERE m.trial_id = t.id AND m.steps_completed = %(points)s * 10 + 10
    """,
    """
    INSERT INTO metric_summaries (trial_id, group_name, metric, type, count, finite_count, sum, min, max,
                                  last, last_steps)
    SELECT id, 'validation', name, 'number', 1, 1, searcher_metric_value, searcher_metric_value,
           searcher_metric_value, to_jsonb(searcher_metric_value), %(points)s * 10 + 10
    FROM trials, (VALUES ('loss'), ('accuracy')) AS named (name)
    """,
    """
    INSERT INTO metrics (trial_id, run_id, group_name, steps_completed, metrics, end_time)
    SELECT (SELECT min(id) FROM trials WHERE experiment_id = 1), 1, 'training', step,
           jsonb_build_object('loss', 1.0 / step + random() / 10), now() - interval '1 hour'
           + step * interval '3 milliseconds'
    FROM generate_series(1, %(long)s) step
    """,
    """
    INSERT INTO metric_summaries (trial_id, group_name, metric, type, count, finite_count, sum, min, max,
                                  last, last_steps)
    SELECT min(id), 'training', 'loss', 'number', %(long)s, %(long)s, %(long)s, 0, 1, '0.1', %(long)s
    FROM trials WHERE experiment_id = 1
    """,
    """
    INSERT INTO task_logs (task_id, allocation_id, agent_id, rank_id, timestamp, level, stdtype, source, log)
    SELECT (SELECT task_id FROM trials WHERE experiment_id = 1 ORDER BY id LIMIT 1), 'a', 'agent-1', n %% 8,
           now() - interval '1 hour' + n * interval '3 milliseconds',
           (ARRAY['INFO', 'INFO', 'INFO', 'WARNING', 'ERROR'])[1 + n %% 5], 'stdout', 'task',
           convert_to('step ' || n || ': loss ' || random(), 'UTF8')
    FROM generate_series(1, %(lines)s) n
    """,
)


def fill(database: str, sizes: Sizes) -> None:
    """Writes the rows beside experiment 1, which has been submitted with :data:`CONFIG`."""
    with psycopg.connect(database, autocommit=True) as conn:
        for statement in (_COPY, *_TRIALS):
            conn.execute(statement, vars(sizes))
        conn.execute("UPDATE experiments SET state = 'COMPLETED', end_time = now() WHERE id = 1")
        conn.execute("VACUUM ANALYZE")
