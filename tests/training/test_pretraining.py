"""Pretraining: recipes that draw the same again, runs that go on, numbers of validation."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from policies.arrays.making import array_policy, write_policy  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from training.tiny import CONFIG, press, rows, take  # noqa: E402

from doppler.datasets import FAMILIES, communication_ratio  # noqa: E402
from doppler.datasets.recipe import Recipe, recipe_from, recipe_to  # noqa: E402
from doppler.errors import (  # noqa: E402
    CheckpointError,
    ConfigError,
    FormatError,
    Interrupted,
    UnknownNameError,
)
from doppler.placers.learned.config import NeighbourhoodConfig  # noqa: E402
from doppler.placers.learned.doppler import DopplerPlacer  # noqa: E402
from doppler.placers.learned.trained import placer_of  # noqa: E402
from doppler.policies.arrays import checkpoint  # noqa: E402
from doppler.policies.arrays.checkpoint import read_provenance  # noqa: E402
from doppler.policies.dual import PolicyConfig, make_policy  # noqa: E402
from doppler.runs.run import resume_run, start_run  # noqa: E402
from doppler.runs.validation_set import (  # noqa: E402
    LIST_SCHEDULERS,
    WORST,
    Known,
    Pace,
    ValidationSet,
    family_gap,
    find_known,
)
from doppler.sim import Simulator  # noqa: E402
from doppler.training.api import describe, pretraining, starting_policy  # noqa: E402
from doppler.training.trainer import Trainer  # noqa: E402

RECIPE = Recipe(
    problems=3, max_vertices=40, validation=2, samples=4, evaluations=60, validate_every_s=1e9
)


def pretrained(path: Path, *, updates: int = 999, recipe: Recipe = RECIPE) -> Path:
    with start_run(pretraining(recipe, CONFIG), path) as run:
        take(run, updates)
    return path


def test_a_recipe_draws_the_same_problems_again() -> None:
    recipe, drawn = RECIPE.draw()
    assert len(drawn) == 3
    assert recipe_from(json.loads(json.dumps(recipe_to(recipe))), "x") == recipe
    assert [p.digest() for p in recipe.draw_again()] == [p.digest() for p in drawn]
    assert replace(RECIPE, seed=1).draw()[0].digest != recipe.digest
    with pytest.raises(FormatError, match="draws other problems"):
        replace(recipe, digest="sha256:0").draw_again()


def test_what_is_left_out_is_not_drawn() -> None:
    _, drawn = replace(RECIPE, problems=12, without=("layered", "mlp")).draw()
    assert not {FAMILIES[p.family].group for p in drawn} & {"layered", "feed-forward"}
    assert {FAMILIES[p.family].split for p in drawn} == {"train"}
    assert {FAMILIES[p.family].split for p in RECIPE.draw_validation()} == {"validation"}
    with pytest.raises(UnknownNameError, match="nothing"):
        replace(RECIPE, without=("nothing",)).draw()


def test_machines_and_ratios_may_be_wider() -> None:
    wide = replace(RECIPE, problems=24, max_devices=64, ratios=(0.01, 100.0))
    recipe, drawn = wide.draw()
    ratios = [communication_ratio(p.graph, p.topology) for p in drawn]
    assert min(ratios) < 0.05
    assert max(ratios) > 20
    assert max(p.topology.num_devices for p in drawn) > 16
    assert recipe_from(json.loads(json.dumps(recipe_to(recipe))), "x") == recipe
    for wrong in ((1.0,), (2.0, 1.0), (0.0, 1.0)):
        with pytest.raises(ConfigError, match="ratios"):
            replace(RECIPE, ratios=wrong)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("problems", 0),
        ("max_devices", 8),
        ("validation", -1),
        ("evaluations", 0),
        ("validate_every_s", -1.0),
    ],
)
def test_recipes_that_are_none(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key):
        Recipe(**{key: value})
    with pytest.raises(FormatError, match=key):
        recipe_from(recipe_to(RECIPE) | {key: value}, "x")
    with pytest.raises(FormatError, match=key):
        recipe_from(recipe_to(RECIPE) | {key: "many"}, "x")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from its beginning to its end."""
    return pretrained(tmp_path_factory.mktemp("runs") / "whole")


@pytest.mark.parametrize("updates", [1, 7, 11])
def test_it_goes_on_bit_for_bit(whole: Path, tmp_path: Path, updates: int) -> None:
    """Before an exercise had its first turn in a stage, between stages, and in the second."""
    parts = pretrained(tmp_path / "parts", updates=updates)
    with resume_run(parts) as run:
        take(run, 999)
    training = [
        [{k: v for k, v in row.items() if k != "validation"} for row in rows(path)]
        for path in (whole, parts)
    ]
    assert training[0] == training[1]
    assert len(training[0]) == 18  # three in each stage of each exercise
    assert rows(whole)[-1] == rows(parts)[-1]  # validation at the end as well
    for name in ("state.safetensors", "policy.safetensors"):
        mine, theirs = load_file(whole / name), load_file(parts / name)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())


def test_stopped_it_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = start_run(pretraining(RECIPE, CONFIG), path)
    with run, pytest.raises(Interrupted):
        press(run, run.stop)
    assert len(rows(path)) == 2
    with resume_run(path) as run:
        assert next(iter(run)).update == 3


def test_plots_show_validation_and_no_single_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: set[str] = set()

    class Plots:
        def log(self, step: int, scalars: dict[str, float]) -> None:
            names.update(scalars)

        def close(self) -> None:
            pass

    monkeypatch.setattr("doppler.runs.run.tensorboard", lambda *_: Plots())
    pretrained(tmp_path / "run")
    stages = {f"{stage}/{name}" for stage in CONFIG.stages for name in ("loss", "lr", "lag")}
    assert stages <= names
    assert {"validation/all/mean_gap", "validation/all/wins"} <= names
    assert all(name in stages or name.startswith("validation/") for name in names)


def test_a_lazy_trainer_learns_what_an_eager_one_does() -> None:
    pairs = [(p.graph, p.topology) for p in RECIPE.draw()[1]]
    eager, lazy = Trainer(pairs, CONFIG), Trainer(pairs, CONFIG, lazy=True)
    assert "instance" not in vars(lazy.records[0].exercise)
    for trainer in (eager, lazy):
        for _ in trainer.run():
            pass
    theirs = lazy.policy.state_dict()
    assert all(torch.equal(v, theirs[k]) for k, v in eager.policy.state_dict().items())


def test_a_directory_holds_the_recipe_and_no_copies(tmp_path: Path) -> None:
    run = pretrained(tmp_path / "run")
    assert not {"graphs", "topologies", "best"} & {found.name for found in run.iterdir()}
    recipe = json.loads((run / "config.json").read_text())["recipe"]
    assert recipe["digest"] == RECIPE.draw()[0].digest
    history = read_provenance(run / "policy.safetensors")
    assert history["recipe"] == recipe
    assert history["episodes"] == 18 * 4
    measured = [row["step"] for row in rows(run) if "validation" in row]
    assert measured == [1, 18]  # at the beginning and the end


def test_a_doppler_that_draws_others_is_refused(tmp_path: Path) -> None:
    run = pretrained(tmp_path / "run", updates=2)
    document = json.loads((run / "config.json").read_text())
    document["recipe"]["digest"] = "sha256:0"
    (run / "config.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="draws other problems"):
        resume_run(run)


def test_what_is_known_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pretrained(tmp_path / "run", updates=2)
    before = (run / "validation.json").read_bytes()
    monkeypatch.setattr("doppler.runs.validation_set.find_known", None)
    resume_run(run).close()
    assert (run / "validation.json").read_bytes() == before
    (run / "validation.json").write_text(before.decode().replace("best_s", "worst_s"))
    with pytest.raises(FormatError, match="is broken"):
        resume_run(run)


def test_without_validation_problems_nothing_is_measured(tmp_path: Path) -> None:
    run = pretrained(tmp_path / "run", recipe=replace(RECIPE, validation=0), updates=2)
    assert not (run / "validation.json").exists()
    assert not any("validation" in row for row in rows(run))


def test_what_is_known_of_a_problem() -> None:
    problem = RECIPE.draw_validation()[0].problem
    known = find_known(problem, 60, 0)
    assert known.bound_s <= known.best_s <= known.listed_s * (1 + 1e-9)
    assert known == find_known(problem, 60, 0)
    assert "heft" in LIST_SCHEDULERS


def test_gaps_of_a_family() -> None:
    rows = [
        (1.0, Known(1.0, 0.5, 2.0)),
        (1.1, Known(1.0, 0.5, inf)),
        (1.4, Known(1.0, 1.0, 1.4)),
        (inf, Known(1.0, 1.0, 3.0)),
    ]
    found = family_gap("x", rows)
    assert (found.problems, found.failures) == (4, 1)
    assert found.mean_gap == pytest.approx(0.5 / 3)
    assert found.p95_gap == pytest.approx(np.percentile([0.0, 0.1, 0.4], 95))
    assert found.bound_gap == pytest.approx((1.0 + 1.2 + 0.4) / 3)
    assert found.wins == 0.5  # of four; a tie is no win
    assert family_gap("x", rows[3:]).mean_gap == WORST


def test_a_policy_is_measured_as_it_places() -> None:
    drawn = replace(RECIPE, validation=6).draw_validation()
    policy = make_policy(PolicyConfig(width=4, rounds=1), 0)
    alone = NeighbourhoodConfig(list_starts=False, polishing_work=0)
    placer = DopplerPlacer(policy, samples=4, search=alone)
    assert placer_of(policy, samples=4).search == alone
    assert placer_of(policy).search == NeighbourhoodConfig()  # as it is used after training
    made = []
    for problem in drawn:
        placed = placer.place(problem.problem)
        made.append(float(Simulator(problem.topology).makespans(problem.graph, [placed])[0]))
    validation = ValidationSet(drawn, [Known(1.0, 1.0, 1.0)] * 6, 4)
    assert validation.makespans_s(policy) == made
    gaps = validation.measure(policy)
    assert [g.family for g in gaps] == [*sorted({p.family for p in drawn}), "all"]
    assert sum(g.problems for g in gaps[:-1]) == gaps[-1].problems == 6
    assert gaps[-1] == family_gap("all", [(s, Known(1.0, 1.0, 1.0)) for s in made])


def test_when_it_is_time_to_validate() -> None:
    pace = Pace(10.0)
    times = [(1.0, False), (5.0, False), (11.0, False), (12.0, False), (12.5, True)]
    assert [pace.is_due(s, at_the_end=end) for s, end in times] == [True, False, True, False, True]


def test_training_goes_on_from_the_policy_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "files", lambda _: tmp_path)
    with pytest.raises(CheckpointError, match="no policy comes with"):
        starting_policy("pretrained")
    (tmp_path / "data").mkdir()
    shipped = array_policy(PolicyConfig(width=4, rounds=1))
    write_policy(shipped, tmp_path / "data" / "policy.safetensors")
    assert starting_policy("pretrained").config.width == 4
    told = describe("pretrained")
    assert told["path"] == "pretrained"
    assert told["digest"].startswith("sha256:")
