"""Fleet: who is there, who was lost, and whether everything that was collected is accounted for."""

from __future__ import annotations

from boards.panels import Board, Panel
from boards.queries import largest, of, rate, total

SERVICES = 'job=~"actor|inference|replay|learner"'
ACTORS = 'job="actor"'
FIRING = ('alertname=~"Shoal.*"', 'alertstate="firing"')
PROCESS = "{{run}} {{job}} {{instance}}"

PRESENCE = (
    Panel(
        "Processes up",
        "A service at 0 or missing: its alert's section in docs/runbooks.md says what to do.",
        [(of("shoal:up:sum"), "{{run}} {{job}}")],
        kind="number",
    ),
    Panel(
        "Alerts that fire",
        "0 is well. Otherwise the alerts page of Prometheus names them, each with its section in "
        "docs/runbooks.md.",
        [(f"count({of('ALERTS', *FIRING)}) or vector(0)", "firing")],
        kind="number",
    ),
    Panel(
        "Actors lost",
        "Fewer than the most of the last 30 minutes. Spot machines were taken, or an autoscaler had too "
        "many: fine if the learner is fed.",
        [
            (
                f"max_over_time({of('shoal:up:sum', ACTORS)}[30m]) - {of('shoal:up:sum', ACTORS)}",
                "{{run}}",
            )
        ],
        kind="number",
    ),
    Panel(
        "Processes up over time",
        "Steps down that do not come back: look at the restarts beside it, and at the nodes.",
        [(of("shoal:up:sum"), "{{run}} {{job}}")],
    ),
    Panel(
        "Restarts and replacements in 15 minutes",
        "Of actors on spot machines some are normal. Of a learner or a shard: read the log of the life "
        "that ended.",
        [
            (
                f"{of('shoal:lives:count15m')} - on (run, job) {of('shoal:up:sum')}",
                "{{run}} {{job}}",
            )
        ],
    ),
    Panel(
        "Time since the start",
        "Teeth of a saw are a restart loop: read that process's log.",
        [(f"time() - {of('process_start_time_seconds', SERVICES)}", PROCESS)],
        unit="s",
    ),
)
WORK = (
    Panel(
        "Environment steps per actor",
        "One far below the others: its machine is busy, or it hangs; end it, another one takes its place.",
        [
            (
                total("run, instance, mode", rate("shoal_actor_env_steps_total")),
                "{{run}} {{instance}} {{mode}}",
            )
        ],
        unit="ops",
    ),
    Panel(
        "Environments",
        "Fewer slots at inference than environments of actors: groups are between two replicas, or dial "
        "in vain.",
        [
            (total("run", of("shoal_actor_envs")), "{{run}} of actors"),
            (total("run", of("shoal_inference_env_slots")), "{{run}} at inference"),
        ],
    ),
    Panel(
        "Versions in use",
        "Learner, inference and actors should rise together. One that stays behind: its connection or its "
        "machine.",
        [
            (largest("run, policy", of("shoal_learner_policy_version")), "{{run}} {{policy}} learner"),
            (
                largest("run, policy, instance", of("shoal_inference_policy_version")),
                "{{run}} {{policy}} {{instance}}",
            ),
            (
                f"min by (run, policy) ({of('shoal_actor_policy_version')})",
                "{{run}} {{policy}} oldest actor",
            ),
        ],
    ),
    Panel(
        "Broken connections",
        "Per second. Actors that reconnect all the time: inference is restarted, or something between "
        "them cuts streams.",
        [
            (total("run", rate("shoal_actor_reconnects_total")), "{{run}} actor to inference"),
            (total("run", rate("shoal_inference_subscription_breaks_total")), "{{run}} inference to learner"),
        ],
        unit="ops",
    ),
    Panel(
        "Environments started again",
        "Per second. They break or hang: the actor's log has the traceback; mend the environment.",
        [(total("run, instance", rate("shoal_actor_env_restarts_total")), "{{run}} {{instance}}")],
        unit="ops",
    ),
    Panel(
        "Deliveries that took another try",
        "Per second. Resent and timed out: shards are full or slow. Moved: a shard was silent. Refused: "
        "see the replay dashboard.",
        [
            (total("run", rate("shoal_actor_resent_items_total")), "{{run}} resent"),
            (total("run", rate("shoal_actor_timed_out_items_total")), "{{run}} timed out"),
            (total("run", rate("shoal_actor_moved_items_total")), "{{run}} moved"),
            (total("run", rate("shoal_actor_rejected_items_total")), "{{run}} refused"),
        ],
        unit="ops",
    ),
)
LEDGER = (
    Panel(
        "Steps: collected, and what became of them",
        "Per second. Collected without training for long and nothing dropped: it waits in a table. "
        "Dropped: streams broke.",
        [
            (total("run", rate("shoal_actor_env_steps_total", 'mode="train"')), "{{run}} collected"),
            (total("run", rate("shoal_learner_env_steps_total")), "{{run}} reached the learner"),
            (total("run", rate("shoal_actor_dropped_steps_total")), "{{run}} dropped with a broken stream"),
            (total("run", rate("shoal_learner_stale_steps_total")), "{{run}} too old"),
        ],
        unit="ops",
    ),
    Panel(
        "Items: inserted = stored + sampled out + evicted + rejected",
        "Per second. Evicted in a run that should see all its data: the table is too small. Rejected: "
        "data does not fit.",
        [
            (total("run, table", rate("shoal_replay_inserted_total")), "{{run}} {{table}} inserted"),
            (total("run, table", rate("shoal_replay_sampled_out_total")), "{{run}} {{table}} sampled out"),
            (total("run, table", rate("shoal_replay_evicted_total")), "{{run}} {{table}} evicted"),
            (total("run, table", rate("shoal_replay_rejected_total")), "{{run}} {{table}} rejected"),
        ],
        unit="ops",
    ),
    Panel(
        "Items that nobody accounts for",
        "0, always. Anything else is a bug: please report it with the output of `shoal replay stats`.",
        [(of("shoal:replay_unaccounted:items"), "{{run}} {{table}}")],
        kind="number",
    ),
)
MACHINES = (
    Panel(
        "Memory",
        "Grows without end: a leak, often in an environment or network of your own. Near the limit: see "
        "the replay dashboard.",
        [(of("process_resident_memory_bytes", SERVICES), PROCESS)],
        unit="bytes",
    ),
    Panel(
        "CPU",
        "Cores in use. A process at 1 that should do more: it is bound to one thread; run more of them.",
        [(rate("process_cpu_seconds_total", SERVICES), PROCESS)],
    ),
    Panel(
        "Open files",
        "Grows without end: connections or files leak; restart the process and report it.",
        [(of("process_open_fds", SERVICES), PROCESS)],
    ),
)

BOARD = Board(
    "shoal-fleet",
    "Fleet",
    "Who is there, who was lost, and whether everything that was collected is accounted for.",
    {"Who is there": PRESENCE, "What they do": WORK, "The ledger": LEDGER, "Machines": MACHINES},
)
