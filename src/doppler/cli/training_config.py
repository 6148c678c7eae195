"""The configuration of `dop train` and `dop pretrain`, from a preset, a file and options."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.errors import ConfigError

if TYPE_CHECKING:
    from doppler.training.config import TrainConfig


def refuse(options: dict[str, Any], output: Path) -> None:
    """Raise where options are given that --resume takes from the run."""
    longer = ("--seconds", "--episodes")
    given = [name for name, value in options.items() if value is not None and name not in longer]
    if given:
        raise ConfigError(
            f"--resume takes all from `{output}`: leave out {', '.join(given)}",
            hint=f"to train on in other ways, start a new run with --from {output}",
        )


def base_config(
    policy_name: str | None,
    preset_name: str | None,
    file: Path | None,
    start: str | None,
    *,
    default: str = "default",
) -> "TrainConfig":
    """The preset to begin with, for the policy that is named or started from."""
    from doppler.training.config_io import read_document
    from doppler.training.presets import preset
    from doppler.training.starting import NOTHING, kind_of_start

    document = {} if file is None else read_document(file)
    name, table = preset_name or str(document.get("preset", default)), document.get("policy")
    kind = str(table.get("kind", "doppler")) if isinstance(table, dict) else "doppler"
    if start is None or start == NOTHING:
        return preset(name, policy_name or kind)
    found = kind_of_start(start)
    if policy_name is not None and preset(name, policy_name).policy.kind != found:
        raise ConfigError(
            f"`{start}` holds a policy of kind `{found}`, not `{policy_name}`",
            hint="leave out --policy",
        )
    return preset(name, found)


def changed_config(
    base: "TrainConfig", file: Path | None, options: dict[str, Any]
) -> "TrainConfig":
    """The preset, changed by the file, changed by those options that are not None."""
    from doppler.training.config import STAGES, check_seconds
    from doppler.training.config_io import config_from, read_document

    document = {} if file is None else read_document(file)
    config = config_from(document | {"preset": base.preset}, base, source=f"`{file}`")
    given = {key: value for key, value in options.items() if value is not None}
    if {"episodes", "seconds"} <= set(given):
        raise ConfigError("--episodes and --seconds do not go together", hint="leave one out")
    if "seconds" in given:
        check_seconds(given["seconds"])
    if "stages" in given:
        given["stages"] = [name.strip() for name in given["stages"].split(",") if name.strip()]
        if not given["stages"]:
            raise ConfigError("there is no stage to train", hint=f"known: {', '.join(STAGES)}")
    for name in ("backend", "mode"):
        if name in given:
            given["real"] = given.get("real", {}) | {name: given.pop(name)}
            if "real" not in given.get("stages", config.stages):
                raise ConfigError(f"--{name} is for stage `real`", hint="add --stages real")
    if "episodes" in given:
        stage = "real" if "real" in given.get("stages", config.stages) else "sim"
        given[stage] = given.get(stage, {}) | {"episodes": given.pop("episodes")}
    return config_from(given, config, source="options")
