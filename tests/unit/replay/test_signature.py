"""What a table takes: which columns, fixed when and by whom, and which values."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from services.replay.signature import UNROLL_LENGTH, Refused, Signature
from services.replay.tables import REJECT_REASONS
from shoal.errors import FailedPreconditionError, InvalidArgumentError
from shoal.records import ACTION, FIRST, OBSERVATION, REWARD, ArraySpec, Columns, Trajectory
from shoal.wire import array_spec_from_proto, array_spec_to_proto

ACTION_OF_4 = ArraySpec(ACTION, "int64", (), num_categories=4)
MINE = "observation float32[3], action int64[], reward float32[], first bool[]"


def trajectory(*, steps: int = 4, envs: int = 2, **changed: np.ndarray | None) -> Trajectory:
    """Columns by name; None: without it."""
    columns: Columns = {
        OBSERVATION: np.ones((steps + 1, envs, 3), np.float32),
        ACTION: np.ones((steps + 1, envs), np.int64),
        REWARD: np.ones((steps + 1, envs), np.float32),
        FIRST: np.zeros((steps + 1, envs), np.bool_),
    }
    given = columns | {name: array for name, array in changed.items() if array is not None}
    return Trajectory({name: array for name, array in given.items() if changed.get(name, array) is not None})


def check(signature: Signature, *trajectories: Trajectory, declared: Sequence[ArraySpec] = ()) -> None:
    """An append that is stored if it fits, of a sender that declared this."""
    fit = signature.fit(declared)
    for trajectory in trajectories:
        fit.check(trajectory)
    signature.fix(fit)


def refusal(
    signature: Signature, *trajectories: Trajectory, declared: Sequence[ArraySpec] = ()
) -> tuple[str, str]:
    """The reason and the message, which is one line."""
    with pytest.raises(Refused) as caught:
        check(signature, *trajectories, declared=declared)
    assert isinstance(caught.value, InvalidArgumentError)
    assert caught.value.reason in REJECT_REASONS
    message = str(caught.value)
    assert "\n" not in message
    return caught.value.reason, message


def fixed(*declared: ArraySpec, **kwargs: bool) -> Signature:
    signature = Signature(**kwargs)
    check(signature, trajectory(), declared=declared)
    return signature


def test_the_first_insert_fixes_columns_types_and_shapes_but_no_sizes() -> None:
    signature = Signature()
    assert signature.specs == ()
    check(signature, trajectory())
    assert signature.specs == (
        ArraySpec(OBSERVATION, "float32", (3,)),
        ArraySpec(ACTION, "int64", ()),
        ArraySpec(REWARD, "float32", ()),
        ArraySpec(FIRST, "bool", ()),
    )
    check(signature, trajectory(steps=9, envs=1))
    other_order = dict(reversed(trajectory().columns.items()))
    check(signature, Trajectory(other_order))


@pytest.mark.parametrize(
    ("changed", "first", "received"),
    [
        (
            {OBSERVATION: np.ones((5, 2, 4), np.float32)},
            "column observation float32[4] differs from the table's",
            "observation float32[4], action int64[], reward float32[], first bool[]",
        ),
        (
            {ACTION: np.ones((5, 2), np.int32)},
            "column action int32[] differs from the table's",
            "observation float32[3], action int32[], reward float32[], first bool[]",
        ),
        (
            {"speed": np.ones((5, 2), np.uint8)},
            "column speed uint8[] is none of the table's",
            f"{MINE}, speed uint8[]",
        ),
        (
            {REWARD: None},
            "column reward float32[] is missing",
            "observation float32[3], action int64[], first bool[]",
        ),
    ],
)
def test_other_columns_are_refused_with_both_signatures(
    changed: dict[str, np.ndarray | None], first: str, received: str
) -> None:
    signature = fixed()
    reason, message = refusal(signature, trajectory(**changed))
    assert reason == "signature"
    assert message == (
        f"{first}. Received: {received}. The table has: {MINE}. Send the same columns, or use another table"
    )
    check(signature, trajectory())


def test_a_renamed_column_is_another_one() -> None:
    """As many columns as before, so their number alone tells nothing."""
    _, message = refusal(fixed(), trajectory(reward=None, prize=np.ones((5, 2), np.float32)))
    assert "column prize float32[] is none of the table's" in message


def test_an_append_that_is_refused_fixes_nothing() -> None:
    signature = Signature(fixes_unroll_length=True)
    wide = trajectory(observation=np.ones((5, 2, 4), np.float32))
    assert refusal(signature, wide, trajectory())[0] == "signature"
    assert refusal(signature, wide, wide, trajectory(action=None))[0] == "signature"
    bad = trajectory(reward=np.full((5, 2), np.nan, np.float32))
    assert refusal(signature, bad)[0] == "not_finite"
    assert refusal(signature, trajectory(steps=5), trajectory(steps=6))[0] == "signature"
    assert signature.specs == ()
    check(signature, trajectory(), trajectory(envs=1))
    assert len(signature.specs) == 5


def test_sequences_have_one_length() -> None:
    signature = fixed(fixes_unroll_length=True)
    reason, message = refusal(signature, trajectory(steps=5))
    assert reason == "signature"
    assert message.startswith("unroll of 5 steps, but those of the table have 4. Received: ")
    assert f"Received: {MINE}, 5 steps. The table has: {MINE}, 4 steps. " in message
    check(signature, trajectory())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_floats_must_be_finite(dtype: type, value: float) -> None:
    good = np.zeros((5, 2), dtype)
    good[:] = np.finfo(dtype).max
    signature = Signature()
    check(signature, trajectory(reward=good))
    bad = good.copy()
    bad[3, 1] = value
    reason, message = refusal(signature, trajectory(reward=bad))
    assert reason == "not_finite"
    assert "column reward has 1 values that are not finite, the first at step 3 of environment 1" in message


def test_categories_must_be_in_range() -> None:
    signature = fixed(ACTION_OF_4)
    check(signature, trajectory(action=np.array([[0, 3]] * 5)))
    for bad in (4, -1, 2**62):
        reason, message = refusal(signature, trajectory(action=np.array([[0, 3]] * 4 + [[bad, 0]])))
        assert reason == "range"
        assert message == f"column action holds {bad}, but has 4 categories: 0 to 3 are allowed"
    # The control: without declared categories any number goes.
    check(fixed(), trajectory(action=np.array([[0, 2**62]] * 5)))


def test_empty_columns_are_in_range() -> None:
    declared = [ArraySpec("nothing", "int64", (0,), num_categories=3)]
    check(Signature(), trajectory(nothing=np.zeros((5, 2, 0), np.int64)), declared=declared)


def test_what_was_declared_binds_the_first_insert_of_its_sender() -> None:
    signature = Signature()
    declared = [ArraySpec(OBSERVATION, "float32", (8,)), ACTION_OF_4]
    _, message = refusal(signature, trajectory(), declared=declared)
    assert message.startswith("column observation float32[3] differs from the table's")
    assert "The table has: observation float32[8], action int64[] of 4 categories" in message
    _, message = refusal(signature, trajectory(observation=None), declared=declared)
    assert message.startswith("column observation float32[8] is missing")
    assert signature.specs == ()
    check(signature, trajectory(observation=np.ones((5, 2, 8), np.float32)), declared=declared)
    assert ACTION_OF_4 in signature.specs


def test_who_never_appends_decides_nothing() -> None:
    signature = Signature()
    for width in range(100):
        signature.declared([ArraySpec(OBSERVATION, "int32", (width,)), ArraySpec(f"x{width}", "int64", ())])
    check(signature, trajectory(), declared=[ACTION_OF_4])
    assert set(signature.specs) == {ACTION_OF_4, *fixed().specs} - {ArraySpec(ACTION, "int64", ())}


def test_of_senders_that_disagree_the_first_to_append_decides() -> None:
    signature = Signature()
    of_5 = ArraySpec(ACTION, "int64", (), num_categories=5)
    signature.declared([ACTION_OF_4])
    signature.declared([of_5])
    check(signature, trajectory(), declared=[of_5])
    # Nothing but the number of categories differs.
    reason, message = refusal(signature, trajectory(), declared=[ACTION_OF_4])
    assert reason == "signature"
    assert re.search(r"Received: action .* of 4 .*The table has: .* of 5 categories", message)
    _, message = refusal(signature, trajectory(), declared=[ArraySpec("speed", "uint8", ())])
    assert message.startswith("column speed uint8[] is none of the table's")


def test_categories_that_the_table_lacks_come_with_an_append_too() -> None:
    signature = fixed()
    bad = trajectory(action=np.full((5, 2), 4))
    assert refusal(signature, bad, declared=[ACTION_OF_4])[0] == "range"
    assert ACTION_OF_4 not in signature.specs
    check(signature, trajectory(), declared=[ACTION_OF_4])
    assert ACTION_OF_4 in signature.specs
    assert refusal(signature, bad)[0] == "range"


def test_declarations_must_agree_with_the_table() -> None:
    signature = fixed()
    signature.declared([ACTION_OF_4])
    # Not to know the number of categories agrees with any.
    signature.declared([ArraySpec(ACTION, "int64", ())])
    signature.declared([])
    others = (
        ArraySpec(ACTION, "int64", (), num_categories=5),
        ArraySpec(ACTION, "int32", (), num_categories=4),
        ArraySpec(ACTION, "int64", (1,), num_categories=4),
    )
    for other in others:
        with pytest.raises(FailedPreconditionError) as caught:
            signature.declared([ArraySpec(REWARD, "float32", (), num_categories=9), other])
        assert f"column {other.describe()} differs from the table's" in str(caught.value)
        assert re.search(r"Received: .*The table has: .*action int64\[\] of 4 categories", str(caught.value))
    # Nothing of what was refused is left: 9 categories of reward would refuse this.
    check(signature, trajectory(reward=np.full((5, 2), 100, np.float32)))
    assert refusal(signature, trajectory(action=np.full((5, 2), 4)))[0] == "range"


def test_a_column_that_a_fixed_table_lacks_cannot_be_declared() -> None:
    signature = fixed()
    with pytest.raises(FailedPreconditionError, match=r"speed uint8\[\] is none of the table's"):
        signature.declared([ArraySpec("speed", "uint8", ())])


def test_a_column_declared_twice_must_agree_with_itself() -> None:
    with pytest.raises(FailedPreconditionError, match="differs"):
        Signature().declared([ACTION_OF_4, ArraySpec(ACTION, "int64", (), num_categories=5)])


def test_survives_a_restart_through_the_journal() -> None:
    before = fixed(ACTION_OF_4, fixes_unroll_length=True)
    after = Signature(fixes_unroll_length=True)
    after.restore([array_spec_from_proto(array_spec_to_proto(spec)) for spec in before.specs])
    assert after.specs == before.specs
    check(after, trajectory())
    assert refusal(after, trajectory(steps=5))[0] == "signature"
    assert refusal(after, trajectory(reward=None))[0] == "signature"
    assert refusal(after, trajectory(action=np.full((5, 2), 4)))[0] == "range"
    with pytest.raises(FailedPreconditionError):
        after.declared([ArraySpec(ACTION, "int64", (), num_categories=5)])
    # As of a table that never had an insert.
    after.restore(())
    check(after, trajectory(steps=7, reward=None))


@pytest.mark.parametrize("fixes_unroll_length", [True, False])
def test_the_name_that_the_unroll_length_is_kept_under_is_refused(fixes_unroll_length: bool) -> None:
    reserved = np.zeros((5, 2), np.float32)
    signature = Signature(fixes_unroll_length=fixes_unroll_length)
    reason, message = refusal(signature, trajectory(**{UNROLL_LENGTH: reserved}))
    assert (reason, "column (unroll_length)" in message) == ("invalid", True)
    with pytest.raises(Refused, match="rename it") as caught:
        signature.declared([ArraySpec(UNROLL_LENGTH, "float32", ())])
    assert caught.value.reason == "invalid"
    check(signature, trajectory())
    # Later on it is one column too many, like any other.
    assert refusal(signature, trajectory(**{UNROLL_LENGTH: reserved}))[0] == "signature"


def test_hostile_names_make_neither_long_nor_several_lines() -> None:
    name = "a\nb" * 100_000
    _, message = refusal(fixed(), trajectory(**{name: np.ones((5, 2))}))
    assert len(message) < 20_000
    assert "column a ba b" in message
    _, message = refusal(Signature(), trajectory(**{name: np.full((5, 2), np.nan)}))
    assert len(message) < 20_000
