"""How long a step to take, by how much there is to learn from a batch. A pure function."""

from __future__ import annotations


def step_factor(deviation: float, noise: float) -> float:
    """How much of a step to take where advantages deviate by so much, and `noise` of it means nothing.

    Normalising hides how small they are: a policy that has nothing left to learn would follow the errors of
    its values at full speed, and forget. Adam takes no notice of the size of a loss, so it is the step that
    shrinks.
    """
    return deviation**2 / (deviation**2 + noise**2) if deviation > 0 else 1.0
