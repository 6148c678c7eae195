"""Recipe: the problems of a pretraining, as what draws them again."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from doppler.base.arrays import unbox_fields
from doppler.base.progress import report
from doppler.datasets import DrawnProblem, problems
from doppler.datasets.families import LARGEST, SMALLEST
from doppler.datasets.machines import MAX_DEVICES
from doppler.errors import ConfigError, FormatError

SAMPLES = 128  # of the policy, beside the greedy ones
EVALUATIONS = 20_000  # of the search that says what is best known
PAUSE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a policy is pretrained on, and how it is validated."""

    problems: int = 512  # to train on
    max_vertices: int = 300
    min_vertices: int = SMALLEST
    without: tuple[str, ...] = ()  # families left out, with all others of their groups
    max_devices: int = MAX_DEVICES
    ratios: tuple[float, ...] = ()  # of communication, two of them; none: those of the families
    split: str = "train"
    seed: int = 0
    validation: int = 24  # problems of split `validation` to measure it by; 0: it is not measured
    validate_every_s: float = PAUSE_S  # seconds of training between measurements
    samples: int = SAMPLES
    evaluations: int = EVALUATIONS
    digest: str = ""  # of the problems, once they are drawn

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name, least in (("problems", 1), ("validation", 0), ("samples", 0), ("evaluations", 1)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} is {value}, must be at least {least}")
        if self.max_devices < MAX_DEVICES:
            raise ConfigError(f"max_devices is {self.max_devices}, must be at least {MAX_DEVICES}")
        if self.ratios and not (len(self.ratios) == 2 and 0 < self.ratios[0] <= self.ratios[1]):
            raise ConfigError(f"ratios are {self.ratios}, must be two positive numbers, or none")
        if not self.validate_every_s >= 0:
            raise ConfigError(f"validate_every_s is {self.validate_every_s}, must not be negative")
        if self.max_vertices > LARGEST:
            raise ConfigError(f"max_vertices is {self.max_vertices}, must be at most {LARGEST}")

    def draw(self) -> tuple["Recipe", tuple[DrawnProblem, ...]]:
        """The recipe with its digest, and the problems to train on."""
        drawn: list[DrawnProblem] = []
        every = problems(
            self.split,
            self.problems,
            self.seed,
            max_vertices=self.max_vertices,
            min_vertices=self.min_vertices,
            without=self.without,
            max_devices=self.max_devices,
            ratios=self.ratios,
        )
        for problem in every:
            drawn.append(problem)
            report("drawing problems", len(drawn), self.problems)
        return replace(self, digest=digest_of(drawn)), tuple(drawn)

    def draw_again(self) -> tuple[DrawnProblem, ...]:
        """The problems to train on; a `FormatError` where they are not those of the digest."""
        again, drawn = self.draw()
        if again.digest != self.digest:
            raise FormatError(
                "this doppler draws other problems than those that the run was started with",
                hint="use the doppler that started it, or start a new run",
            )
        return drawn

    def draw_validation(self) -> tuple[DrawnProblem, ...]:
        """The problems to measure the policy by: of families and machines it is not trained on."""
        drawn = problems(
            *("validation", self.validation, self.seed),
            max_vertices=self.max_vertices,
            min_vertices=self.min_vertices,
            max_devices=self.max_devices,
            ratios=self.ratios,
        )
        return tuple(drawn)


def digest_of(drawn: Iterable[DrawnProblem]) -> str:
    """`sha256:…` of problems in their order."""
    sha = hashlib.sha256()
    for problem in drawn:
        sha.update(problem.digest().encode())
    return f"sha256:{sha.hexdigest()}"


def recipe_to(recipe: Recipe) -> dict[str, Any]:
    """JSON values of a recipe."""
    return asdict(recipe) | {"without": list(recipe.without), "ratios": list(recipe.ratios)}


def recipe_from(document: Any, source: str) -> Recipe:
    """The recipe of JSON values."""
    expected = recipe_to(Recipe())
    if not isinstance(document, Mapping) or document.keys() != expected.keys():
        raise FormatError(f"{source}: `recipe` must be an object with {', '.join(expected)}")
    for key, value in expected.items():
        kinds = (int, float) if isinstance(value, float) else (type(value),)
        if type(document[key]) not in kinds:
            raise FormatError(f"{source}: `recipe.{key}` is of the wrong type")
    try:
        lists = {"without": tuple(map(str, document["without"]))}
        return Recipe(**{**document, **lists, "ratios": tuple(map(float, document["ratios"]))})
    except (ConfigError, TypeError, ValueError) as error:
        raise FormatError(f"{source}: `recipe`: {error}") from None
