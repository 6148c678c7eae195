"""Verdicts follow from data by rules."""

import json

import pytest

from doppler.reproduce.findings import (
    FAILS,
    HOLDS,
    UNTESTED,
    AssignmentDrawing,
    Claim,
    FigureTable,
    Finding,
    Inequality,
    LineChart,
    Spread,
    cannot_test,
    check,
    claim,
    from_json,
    is_below,
    spread,
    to_json,
)
from doppler.reproduce.pages import page, section

NOTHING = Spread(float("nan"), 0.0, 0)


def finding(*claims: Claim) -> Finding:
    table = FigureTable("ms", ("method", "chainmm"), (("doppler", "100.0 ± 1.0"),))
    chart = LineChart("runs", "executions", "ms", {"I": [[0.0, 1.0], [2.0, 3.0]]})
    drawing = AssignmentDrawing("ffnn", "p100x4", "ffnn", [-1, 0, 1], timeline=True)
    origin = {"budget": "quick", "executor": "sim"}
    return Finding(
        *("seeds", "five seeds", "App. G.2", "2 seeds."), (table,), claims, (chart, drawing), origin
    )


@pytest.mark.parametrize(
    ("less", "more", "expected"),
    [
        (Spread(99.0), Spread(100.0), True),
        (Spread(99.6), Spread(100.0), False),  # less than half a percent
        (Spread(98.0, 3.0, 3), Spread(100.0), False),  # less than the spread
        (Spread(98.0), Spread(100.0, 3.0, 3), False),
        (Spread(101.0), Spread(100.0), False),
        (NOTHING, Spread(100.0), False),
    ],
)
def test_below_is_by_more_than_the_spread(less: Spread, more: Spread, expected: bool) -> None:
    assert is_below(less, more) is expected


def test_a_claim_holds_if_all_its_comparisons_do() -> None:
    good, bad = (Inequality(g, Spread(a), Spread(100.0)) for g, a in (("a", 90.0), ("b", 110.0)))
    nothing = Inequality("c", NOTHING, Spread(1.0))
    assert claim("x", [good, good, nothing]).verdict == HOLDS
    found = claim("x", [good, bad])
    assert found.verdict == FAILS
    assert found.reason.startswith("1 of 2 comparisons: a 90.0 against 100.0 (-10.0 %); b 110.0")
    assert claim("x", [good, bad], least=1).verdict == HOLDS
    assert claim("x", [nothing]).verdict == claim("x", []).verdict == UNTESTED


def test_a_label_holds_if_all_claims_that_can_be_tested_do() -> None:
    yes, no, unknown = check("a", True, "r"), check("b", False, "r"), cannot_test("c", "r")
    assert (finding(yes, unknown).verdict, finding(yes, no).verdict) == (HOLDS, FAILS)
    assert finding(unknown).verdict == UNTESTED
    assert finding(yes, no, unknown).summary == "1 of 2 claims hold; 1 cannot be tested here"


def test_findings_are_read_as_they_were_written() -> None:
    one = finding(check("a", True, "r"))
    assert from_json(json.loads(json.dumps(to_json(one)))) == one


def test_a_page_has_command_claims_and_tables() -> None:
    one = finding(check("seeds agree", True, "ours by 1 %"))
    text = section(one)
    assert "`dop reproduce seeds --quick --executor sim`" in text
    assert "| seeds agree | **holds** | ours by 1 % |" in text
    assert "| doppler | 100.0 ± 1.0 |" in text
    assert "[`seeds`](#seeds)" in page([one])


def test_spreads_are_shown_with_their_unit_of_precision() -> None:
    assert str(spread([1.0, 2.0])) == "1.50 ± 0.50"
    assert (str(spread([1234.56])), str(NOTHING)) == ("1,234.6", "–")
