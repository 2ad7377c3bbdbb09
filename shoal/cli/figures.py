"""The figures of a sample as short texts, the same in both views. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cli.charts import short
from shoal.cli.child import Child, State
from shoal.cli.history import Sample
from shoal.cli.vitals import WORK

UNKNOWN = "-"


def clock(seconds: float) -> str:
    """h:mm:ss, without the hours of a short run."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def episode_return(sample: Sample) -> str:
    return UNKNOWN if sample.episode_return is None else f"{sample.episode_return:,.1f}"


def untrained(sample: Sample) -> str:
    """Beside the return: ` (untrained 22.1)`, or nothing."""
    return "" if sample.untrained_return is None else f" (untrained {sample.untrained_return:,.1f})"


def returns(sample: Sample) -> str:
    """The return beside the untrained policy's, or that of each policy."""
    if not sample.policies:
        return f"{episode_return(sample)}{untrained(sample)}"
    return ", ".join(f"{name} {of_policy(sample, name, 'episode_return')}" for name in sample.policies)


def losses(sample: Sample) -> str:
    """Of each policy."""
    return ", ".join(f"{name} {of_policy(sample, name, 'loss')}" for name in sample.policies)


def of_policy(sample: Sample, policy: str, figure: str) -> str:
    value = sample.policies[policy].get(figure)
    if value is None:
        return UNKNOWN
    return {"loss": f"{value:.3g}", "env_steps": f"{value:,.0f}"}.get(figure, f"{value:,.1f}")


def env_steps(sample: Sample) -> str:
    return UNKNOWN if sample.env_steps is None else f"{sample.env_steps:,}"


def trained(sample: Sample) -> str:
    """Steps trained on per second; from a table that is sampled again and again, how often each."""
    rate = per_second(sample.trained_steps_per_s)
    times = samples_per_step(sample)
    return rate if times is None else f"{rate}, {times} samples per step"


def trained_at_once(sample: Sample) -> str:
    """With the effective batch, where there is room for it."""
    batch = f", {sample.effective_batch:,} at a time" if sample.effective_batch else ""
    return f"{trained(sample)}{batch}"


def samples_per_step(sample: Sample) -> str | None:
    """None where each step is trained on once."""
    times = sample.samples_per_step
    return None if times is None or abs(times - 1.0) < 0.01 else f"{times:.3g}"


def per_second(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rounded(rate)}/s"


def rounded(value: float) -> str:
    """Three digits are all that a rate on a live screen can mean."""
    return short(float(f"{value:.3g}"))


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def inference(sample: Sample) -> str:
    if sample.inference_batch is None:
        return UNKNOWN
    latency = "" if sample.inference_latency_ms is None else f", {sample.inference_latency_ms:.1f} ms"
    return f"{sample.inference_batch:.0f} rows{latency}"


def replay(sample: Sample) -> str:
    if sample.replay_items is None:
        return UNKNOWN
    return f"{sample.replay_items} items, {percent(sample.replay_fill)}"


def policy_lag(sample: Sample) -> str:
    return UNKNOWN if sample.policy_lag is None else f"{sample.policy_lag:.1f}"


def work(child: Child, rates: dict[str, float]) -> str:
    rate = rates.get(child.name)
    return UNKNOWN if rate is None else f"{rounded(rate)} {WORK[child.spec.role][1]}/s"


def states(children: Sequence[Child]) -> str:
    """`up`, or how many are what: `3 up, 1 restarting`."""
    counts = {state: sum(child.state is state for child in children) for state in State}
    present = [(state.value, count) for state, count in counts.items() if count]
    if len(children) == 1 or len(present) == 1:
        return present[0][0]
    return ", ".join(f"{count} {name}" for name, count in present)
