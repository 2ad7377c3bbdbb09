"""What can be set of the policy's network. Part of the tree in `shoal.config.tree`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from shoal.section import Section


class PolicySection(Section):
    """The network."""

    kind: Literal["actor_critic", "q", "soft_actor_critic", "deterministic"] = Field(
        "actor_critic",
        description="`actor_critic`: a distribution and a value; `q`: values of discrete actions; "
        "`soft_actor_critic`: tanh-Gaussian and twin Q; `deterministic`: one action and twin Q. "
        "If not set, the kind that the algorithm trains.",
    )
    network: str = Field(
        "auto",
        min_length=1,
        description="`auto` (nature_cnn for images, mlp for the rest), `mlp`, `nature_cnn`, `impala_resnet`, "
        "or `module:factory` of your own encoder.",
    )
    network_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of your own encoder."
    )
    hidden_sizes: tuple[Annotated[int, Field(ge=1, le=1 << 16)], ...] = Field(
        (64, 64), max_length=16, description="Units of each hidden layer of the MLP."
    )
    activation: Literal["tanh", "relu"] = Field("tanh", description="Non-linearity of the MLP.")
    value_trunk: Literal["auto", "shared", "separate"] = Field(
        "auto",
        description="Whether the value of an `actor_critic` has layers of its own. `auto`: `separate` where "
        "the observation holds no image and the policy has no recurrent core.",
    )
    scale_actions: bool = Field(
        True,
        description="An `actor_critic` counts Box actions in half widths of their bounds, from the middle; "
        "elements without bounds, and all of them if this is false, in the environment's units.",
    )
    initial_log_std: float = Field(
        0.0,
        ge=-10,
        le=5,
        description="Log of the deviation that an `actor_critic` draws Box actions with at the start.",
    )
    normalise_observations: bool = Field(
        False,
        description="Numbers get mean 0 and deviation 1 over all that was trained on, clipped to +-10; "
        "images for convolutions, categories, zeros and ones stay as they are.",
    )
    frame_stack: int = Field(
        1,
        ge=1,
        le=64,
        description="Newest observations that the network sees; sent and stored once.",
    )
    recurrent: Literal["none", "lstm", "gru"] = Field(
        "none", description="A core with memory between encoder and heads."
    )
    recurrent_size: int = Field(128, ge=1, le=1 << 14, description="Units of the recurrent core.")
    previous_inputs: bool = Field(
        True,
        description="A recurrent core also sees the previous action and reward; both are zeros at the start "
        "of an episode. Without a core it changes nothing.",
    )
    dueling: bool = Field(True, description="A `q` policy splits its values into state value and advantages.")

    @property
    def has_state(self) -> bool:
        """It remembers something between steps."""
        return self.frame_stack > 1 or self.recurrent != "none"

    @property
    def needs_previous(self) -> bool:
        """Environments are to show the previous action and reward."""
        return self.previous_inputs and self.recurrent != "none"
