"""What to change when a run does not learn, by the algorithm and its settings. No torch.

The one place that knows: the learner's guards and the last lines of `shoal train` ask here. A setting that is
already as it should be is not named.
"""

from __future__ import annotations

from shoal.algorithms.settings import AlgorithmSection

# What policies without randomness of their own explore by.
_EXPLORES_BY = {"q": "epsilon", "deterministic": "noise"}


def to_try(section: AlgorithmSection) -> str:
    """For a run that has not learned, the most likely first; the middle of a sentence."""
    return _either(
        [*_what_to_try(section), f"another algorithm.learning_rate (now {section.learning_rate:g})"]
    )


def for_no_progress(section: AlgorithmSection) -> str:
    return f"Try {to_try(section)}; a task that takes longer than this is no mistake"


def for_values(section: AlgorithmSection) -> str:
    options = [_smaller_targets(section), f"raise algorithm.learning_rate (now {section.learning_rate:g})"]
    value_cost = getattr(section, "value_cost", None)
    if value_cost is not None:
        options.append(f"raise algorithm.value_cost (now {value_cost:g})")
    return _sentence(options)


def for_gradients(section: AlgorithmSection) -> str:
    return _sentence(
        [_smaller_targets(section), f"raise algorithm.max_grad_norm (now {section.max_grad_norm:g})"]
    )


def for_collapse(section: AlgorithmSection) -> str:
    options = [f"lower algorithm.learning_rate (now {section.learning_rate:g})"]
    if section.learning_rate_schedule == "constant":
        options.append("let it fall (algorithm.learning_rate_schedule=linear)")
    if getattr(section, "target_kl", 0.0) is None:
        options.append("limit each update (algorithm.target_kl=0.02)")
    return _sentence(options)


def _what_to_try(section: AlgorithmSection) -> list[str]:
    options = []
    if section.replays:
        options.append("more algorithm.updates_per_step")
        options.append(f"another algorithm.reward_scale (now {section.reward_scale:g})")
        if section.trains in _EXPLORES_BY:
            options.append(f"more exploration (exploration.{_EXPLORES_BY[section.trains]})")
        return options
    if not section.normalise_returns:
        options.append("algorithm.normalise_returns=true")
    if not section.is_synchronous:
        options.append("algorithm.name=ppo")
    entropy_cost = getattr(section, "entropy_cost", None)
    if entropy_cost is not None:
        options.append(f"a higher algorithm.entropy_cost (now {entropy_cost:g})")
    return options


def _smaller_targets(section: AlgorithmSection) -> str:
    if not section.normalise_returns and not section.replays:
        return "set algorithm.normalise_returns=true"
    return f"lower algorithm.reward_scale (now {section.reward_scale:g})"


def _either(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"


def _sentence(options: list[str]) -> str:
    text = _either(options)
    return text[0].upper() + text[1:]
