"""Throughput: how fast the run is, who waits for whom, and which part limits it."""

from __future__ import annotations

from boards.panels import Board, Panel
from boards.queries import mean, of, quantile, rate, total

SHARE = of("shoal:bottleneck:share")
MODEL_THREAD, EVENT_LOOP = 'phase=~"copy|forward|idle"', 'phase=~"decode|reply"'
TRAINING_THREAD, PREFETCH = 'phase=~"wait|train|publish"', 'phase=~"decode|copy"'

LIMIT = (
    Panel(
        "What limits the run",
        "The part with the largest share, and what to do about it. Two runs: one line each.",
        [(f"topk by (run) (1, {SHARE})", "{{run}} {{part}}: {{advice}}")],
        kind="words",
        width=24,
        height=4,
    ),
    Panel(
        "Parts by their share",
        "Of the learner's time: its own work, and its waiting shared out by what actors do meanwhile. "
        "Speed up the longest bar.",
        [(f"sort_desc({SHARE})", "{{run}} {{part}}")],
        kind="ranking",
        unit="percentunit",
        largest=1,
    ),
    Panel(
        "Parts over time",
        "A part that grows when you scale another one: you have found the next limit.",
        [(SHARE, "{{run}} {{part}}")],
        kind="stacked",
        unit="percentunit",
    ),
    Panel(
        "Environment steps per second",
        "Collected above trained for long: data is dropped or refused; see the ledger on the fleet "
        "dashboard.",
        [
            (of("shoal:env_steps_collected:rate1m"), "{{run}} collected"),
            (of("shoal:env_steps_trained:rate1m"), "{{run}} reached the learner"),
        ],
        unit="ops",
    ),
)
BREAKDOWN = (
    Panel(
        "Actors",
        "env_step large: more actors or faster environments; wait_action: inference; wait_ack: the "
        "learner or the shards.",
        [(of("shoal:actor_phase:share"), "{{run}} {{phase}}")],
        kind="stacked",
        unit="percentunit",
        largest=1,
    ),
    Panel(
        "Inference: the model thread",
        "No idle left: more replicas, a GPU or a smaller network. Mostly idle: actors are too few.",
        [
            (
                mean("run, phase", rate("shoal_inference_phase_seconds_total", MODEL_THREAD)),
                "{{run}} {{phase}}",
            )
        ],
        kind="stacked",
        unit="percentunit",
    ),
    Panel(
        "Inference: the event loop",
        "Decoding and replying near 1: fewer and larger messages (actor.envs), or more replicas.",
        [(mean("run, phase", rate("shoal_inference_phase_seconds_total", EVENT_LOOP)), "{{run}} {{phase}}")],
        kind="stacked",
        unit="percentunit",
    ),
    Panel(
        "Learner: the training thread",
        "wait large: collect more. wait near zero: training is the limit. publish large: publish less often.",
        [
            (
                mean("run, phase", rate("shoal_learner_phase_seconds_total", TRAINING_THREAD)),
                "{{run}} {{phase}}",
            )
        ],
        kind="stacked",
        unit="percentunit",
    ),
    Panel(
        "Learner: preparing batches",
        "Threads beside training. Near their number while training waits: raise learner.decode_threads.",
        [(mean("run, phase", rate("shoal_learner_phase_seconds_total", PREFETCH)), "{{run}} {{phase}}")],
        kind="stacked",
        unit="percentunit",
    ),
    Panel(
        "Replay: who waits for whom",
        "Calls waiting at once. Inserts wait: the learner is slower. Samples wait: actors are slower. "
        "Both: look at the disk.",
        [
            (total("run", rate("shoal_replay_insert_wait_seconds_total")), "{{run}} inserts wait"),
            (total("run", rate("shoal_replay_sample_wait_seconds_total")), "{{run}} samples wait"),
        ],
    ),
)
QUEUES = (
    Panel(
        "The learner's waiting",
        "Share of its time. Above 0.8: add actors; autoscalers of actors follow it.",
        [(of("shoal:learner_starvation:ratio"), "{{run}}")],
        unit="percentunit",
        largest=1,
    ),
    Panel(
        "Wait of a request before its batch",
        "Mean. Longer than a forward pass takes: more replicas; autoscalers of inference follow it.",
        [(of("shoal:inference_queue_wait:seconds"), "{{run}}")],
        unit="s",
    ),
    Panel(
        "Batches ready for training",
        "Zero all the time: the learner is starved, or decoding is too slow. Always full: training is the "
        "limit.",
        [(total("run, policy", of("shoal_learner_ready_batches")), "{{run}} {{policy}}")],
    ),
    Panel(
        "Rows of a forward pass",
        "Small beside many actors: raise inference.min_batch and max_wait_ms, or use fewer replicas.",
        [
            (quantile(0.5, "run", "shoal_inference_batch_rows"), "{{run}} p50"),
            (quantile(0.95, "run", "shoal_inference_batch_rows"), "{{run}} p95"),
        ],
    ),
    Panel(
        "Latency of an answer",
        "From a decoded request to its actions. p99 far above p50: a busy machine, or several models on "
        "one GPU.",
        [
            (quantile(0.5, "run", "shoal_inference_request_latency_seconds"), "{{run}} p50"),
            (quantile(0.95, "run", "shoal_inference_request_latency_seconds"), "{{run}} p95"),
            (quantile(0.99, "run", "shoal_inference_request_latency_seconds"), "{{run}} p99"),
        ],
        unit="s",
    ),
    Panel(
        "Requests per second and replica",
        "One replica with far fewer: its actors are gone, or it is new and groups have not moved yet.",
        [(total("run, instance", rate("shoal_inference_requests_total")), "{{run}} {{instance}}")],
        unit="reqps",
    ),
)
BYTES = (
    Panel(
        "Trajectories, before and after compression",
        "As sent nearly as large as raw: the data does not compress; spend the CPU elsewhere.",
        [
            (total("run", rate("shoal_actor_trajectory_raw_bytes_total")), "{{run}} raw"),
            (total("run", rate("shoal_actor_trajectory_encoded_bytes_total")), "{{run}} as sent"),
        ],
        unit="Bps",
    ),
    Panel(
        "Bytes into and out of the replay",
        "Near what the network can carry: more shards on other machines, or actors closer to them.",
        [
            (total("run", rate("shoal_replay_received_bytes_total")), "{{run}} in"),
            (total("run", rate("shoal_replay_sampled_bytes_total")), "{{run}} out"),
        ],
        unit="Bps",
    ),
    Panel(
        "Loading weights",
        "Share of a replica's time, beside acting. Near 1: publish less often (learner.publish_every).",
        [(mean("run", rate("shoal_inference_weight_load_seconds_total")), "{{run}}")],
        unit="percentunit",
    ),
)

BOARD = Board(
    "shoal-throughput",
    "Throughput and bottleneck",
    "How fast the run is, who waits for whom, and which part limits it.",
    {
        "Which part limits": LIMIT,
        "Where the time goes": BREAKDOWN,
        "Queues and batches": QUEUES,
        "Bytes": BYTES,
    },
)
