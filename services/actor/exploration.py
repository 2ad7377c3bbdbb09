"""How daring each environment of an actor is (Horgan et al. 2018, section 4: a ladder of epsilons). Pure."""

from __future__ import annotations

from services.actor.assignment import actor_number
from shoal.config.tree import ExplorationSection

_GOLDEN_RATIO = 0.6180339887498949


def epsilons(
    section: ExplorationSection, actor_id: str, first_slot: int, num_slots: int, slots_per_actor: int
) -> tuple[float, ...]:
    """One for each slot from `first_slot` on; none if there is no exploration.

    Nobody knows how many actors there are, and they come and go: multiples of the golden ratio fill the
    interval evenly however many are taken.
    """
    if not section.epsilon:
        return ()
    start = actor_number(actor_id) * slots_per_actor + first_slot
    places = [(start + slot) * _GOLDEN_RATIO % 1.0 for slot in range(num_slots)]
    return tuple(section.epsilon ** (1.0 + section.epsilon_spread * place) for place in places)
