"""The presets of TrainConfig, for every kind of policy."""

from dataclasses import replace

from doppler.errors import ConfigError, UnknownNameError
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.configs import AnyConfig, GdpConfig, PlacetoConfig, Seq2SeqConfig
from doppler.training.config import (
    FROM_NOTHING,
    ExpertConfig,
    ImitationConfig,
    RealConfig,
    ReinforceConfig,
    TrainConfig,
)

PRESETS = {
    "default": TrainConfig(),
    # Many problems: less of each at a time, steps from several, a shorter search; and samples shall
    # stay different, as the placer takes many (docs/explanation/policies.md).
    "pretrain": TrainConfig(
        preset="pretrain",
        imitation=ImitationConfig(episodes=64, batch=8),
        sim=ReinforceConfig(
            batch=8,
            lr=(1e-3, 1e-4),
            temperature=(1.0, 1.0),
            entropy=3e-3,
            expert=ExpertConfig(moves=500, first_moves=4000, until=0.5),
        ),
        problems_per_step=4,
    ),
    "paper": TrainConfig(  # Sec. 6.1, where not said otherwise; one episode per update
        preset="paper",
        policy=PolicyConfig(features="paper", most_devices=0),
        imitation=ImitationConfig(batch=1, lr=(1e-4, 1e-4)),
        sim=ReinforceConfig(
            episodes=4000,
            batch=1,
            lr=(1e-4, 1e-7),
            temperature=(0.0, 0.0),
            epsilon=(0.2, 0.0),
            alike=False,
            entropy=1e-2,
            reinforce=1.0,
            anchor=0.0,
            running_mean=True,  # Sec. 4.1
            expert=None,
        ),
        # The paper gives no numbers for Stage III alone: those of all RL, and as many episodes as
        # it fine-tunes for another machine (Sec. 6, Q5).
        real=RealConfig(
            guarded=False,
            episodes=2000,
            batch=1,
            samples=1,
            plain=1,
            moves=0,
            lr=(1e-4, 1e-7),
            temperature=(0.0, 0.0),
            epsilon=(0.2, 0.0),
            alike=False,
            entropy=1e-2,
            reinforce=1.0,
            lessons=0,
            running_mean=True,
            warm_up=0,
            final_runs=0,
        ),
    ),
}


def _rival(
    policy: AnyConfig,
    lr: tuple[float, float],
    exploration: float,
    *,
    batch: int = 16,
    fast: tuple[float, float] = (2e-3, 1e-4),
    stages: tuple[str, ...] = ("sim",),
) -> dict[str, TrainConfig]:
    """The presets of a rival.

    `paper` is Sec. 6.1: lr and exploration of each method, an entropy weight of 1e-2, one episode
    per update, a running mean as baseline (Sec. 4.1). `default` has batches, their mean as
    baseline, and `fast`, an lr for fewer updates.
    """
    few = RealConfig(batch=8, samples=8, plain=8, moves=0, lessons=0, temperature=(1.0, 0.5))
    default = TrainConfig(
        stages=stages,
        policy=policy,
        imitation=ImitationConfig(batch=batch),
        sim=ReinforceConfig(
            episodes=16384,
            batch=batch,
            lr=fast,
            temperature=(1.0, 1.0),
            epsilon=(0.2, 0.0),
            entropy=1e-2,
            reinforce=1.0,
            anchor=0.0,
            alike=False,
            expert=None,
        ),
        real=few,
    )
    paper = replace(
        default,
        preset="paper",
        imitation=ImitationConfig(batch=1, lr=(lr[0], lr[0])),
        sim=replace(
            default.sim,
            episodes=4000,
            batch=1,
            lr=lr,
            epsilon=(exploration, 0.0),
            running_mean=True,
        ),
        real=replace(
            few,
            guarded=False,
            batch=1,
            samples=1,
            plain=1,
            lr=lr,
            running_mean=True,
            warm_up=0,
            final_runs=0,
        ),
    )
    return {"default": default, "paper": paper}


_GDP = ((1e-4, 1e-7), 0.2)  # lr and exploration: Sec. 6.1
_PLACETO = ((1e-3, 1e-6), 0.5)  # Sec. 6.1
POLICIES: dict[str, dict[str, TrainConfig]] = {  # presets by the name of the policy
    PolicyConfig.kind: PRESETS,
    "placeto": _rival(PlacetoConfig(), *_PLACETO, batch=8),
    # App. G.4
    "placeto-pretrain": _rival(PlacetoConfig(), *_PLACETO, batch=8, stages=FROM_NOTHING),
    # With an lr of 2e-3 all of Llama ended on one device, which is no slower than at random.
    "gdp": _rival(GdpConfig(), *_GDP, fast=(5e-4, 1e-5)),
    # The DOPPLER paper does not train it; the lr and exploration are those of GDP.
    "seq2seq": _rival(Seq2SeqConfig(), *_GDP),
}


def preset(name: str, policy: str = PolicyConfig.kind) -> TrainConfig:
    """The config of that name for a policy."""
    if policy not in POLICIES:
        raise UnknownNameError("policy", policy, POLICIES)
    if name in PRESETS and name not in POLICIES[policy]:
        raise ConfigError(
            f"policy `{policy}` has no training preset `{name}`",
            hint=f"known: {', '.join(POLICIES[policy])}; `{PolicyConfig.kind}` has it",
        )
    if name not in POLICIES[policy]:
        raise UnknownNameError("training preset", name, POLICIES[policy])
    return POLICIES[policy][name]
