"""What training starts from, found without torch."""

from dataclasses import dataclass
from pathlib import Path

from doppler.placers.learned.doppler import POLICY_FILE
from doppler.policies.arrays.checkpoint import (
    checked_metadata,
    has_shipped_policy,
    kind_of,
    shipped_policy,
)
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.arrays.tensor_file import read_tensor_file
from doppler.training.config import TrainConfig

PRETRAINED = "pretrained"  # the policy that comes with the package
NOTHING = "nothing"  # a policy with random weights
PAPER = "paper"  # the preset that trains as the paper does


@dataclass(frozen=True, slots=True)
class UsualStart:
    """What training starts from by default, and why."""

    start: str  # PRETRAINED or NOTHING
    why: str = ""  # why it is nothing


def usual_start(config: TrainConfig) -> UsualStart:
    """The policy that comes with the package, or nothing where that cannot be, with the reason.

    It cannot where there is no such policy, where the config's policy is of another kind or shape,
    where the first stage is imitation, which would undo what it has learned, and in the preset
    `paper`, as the paper trains from nothing.
    """
    kind = config.policy.kind
    if kind != PolicyConfig.kind:
        return UsualStart(NOTHING, f"no policy of kind `{kind}` comes with doppler")
    if not has_shipped_policy():
        return UsualStart(NOTHING, "no policy comes with this installation of doppler")
    if config.preset == PAPER:
        return UsualStart(NOTHING, f"preset `{PAPER}` trains as the paper does")
    if config.stages[:1] == ("imitation",):
        return UsualStart(NOTHING, "the first stage is imitation")
    if config.policy != shipped_policy().config:
        return UsualStart(NOTHING, "the policy that comes with doppler has another shape")
    return UsualStart(PRETRAINED)


def kind_of_start(start: str | Path) -> str:
    """The kind of the policy to start from; an error where there is none."""
    if start == PRETRAINED:
        return shipped_policy().config.kind
    file = policy_file(start)
    return kind_of(checked_metadata(read_tensor_file(file), file))


def policy_file(path: str | Path) -> Path:
    """The checkpoint of a run, or the one that is named."""
    path = Path(path)
    return path / POLICY_FILE if path.is_dir() else path
