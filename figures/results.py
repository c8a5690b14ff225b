"""docs/RESULTS.md from figures/data: `python -m figures.results` writes it; what has no data is not measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from figures import answers, claims, glue_answers, gpt2_answers, store
from figures.drawing import DATA, ROOT
from kronzo.pretrain.reported import SOURCE, STEPS
from kronzo.pretrain.units import count
from spectra import report

PAGE = ROOT.parent / "docs" / "RESULTS.md"
_HOW = (
    "Here: final validation losses, and the difference seed by seed with its 95 % interval (Student's t); a difference "
    "inside its interval decides nothing, and level means that the whole interval is within "
    f"{claims.LEVEL} nats. "
    "Every row has the lr that was best on another seed at a quarter of the budget, of as many trials as any other; "
    "no row has a `scale`. LOZO and SubZero keep their factors for five steps, as KronZO does, not for the 50 and 1000 "
    "of their papers. The machine was shared, so seconds are noisy; losses are not."
)


@dataclass(frozen=True)
class Question:
    """One of the eight: what is asked, of which data, and the function that answers in two sentences."""

    name: str
    title: str
    answer: Callable[[pd.DataFrame], list[str]]


QUESTIONS = (
    Question("q1", "Averaging against the directional rule", answers.rules),
    Question("q2", "What the Kronecker structure itself buys", answers.structure),
    Question("q3", "Rank of the search: does full rank pay, early or late", answers.ranks),
    Question("q4", "Refresh interval, directions, window rule and acceptance", answers.settings),
    Question("q5", "A batch shared by all directions, or a slice for each", answers.split),
    Question("q6", "Zeroth order against first order", answers.orders),
    Question("q7", "Cosine between estimate and gradient, measured and predicted", answers.alignments),
    Question("q8", "Seconds and bytes of a step, by part", answers.costs),
)


GPT2 = ("gpt2", "gpt2-loss")
"""Names of the data of GPT-2 small itself: its spectra, and its losses under both orders."""

_PICTURES = {
    "gpt2-loss": "Zeroth order beside first order on GPT-2 small",
    "fig2-gpt2": "Singular values of GPT-2 small's gradients",
    "fig3-gpt2": "Their stable rank",
    "fig4-gpt2": "Their participation ratio",
}


def page(frames: dict[str, pd.DataFrame]) -> str:
    """Return RESULTS.md.

    Args:
        frames: the data of the questions by name; those that lack are not measured.
    """
    lines = ["# What of the paper holds at this scale", "", *_head(frames), ""]
    for number, question in enumerate(QUESTIONS, start=1):
        lines += [f"## {number}. {question.title}", ""]
        frame = frames.get(question.name)
        lines += _section(question, frame) if frame is not None else ["Not measured.", ""]
        if question.name == "q6" and "reproduction" in frames:
            lines += [answers.longer(frames["reproduction"]), ""]
    return "\n".join([*lines, *_gpt2(frames), *_glue(frames), *_closing(frames)]).rstrip("\n") + "\n"


def _head(frames: dict[str, pd.DataFrame]) -> list[str]:
    if "q1" not in frames or "q6" not in frames:
        return ["The comparison of rules and orders is not measured."]
    q1 = frames["q1"]
    found = claims.claims(q1, frames["q6"])
    said = {
        verdict: "; ".join(_said(claim) for claim in found if claim.verdict == verdict)
        for verdict in (claims.HOLDS, claims.FAILS, claims.MIXED, claims.OPEN)
    }
    seeds, last = q1["seed"].nunique(), answers.finals(q1)
    budgets = " or ".join(sorted({count(float(value)) for value in last["token_forwards"].round(-4).unique()}))
    lines = [f"**{verdict.capitalize()}:** {text or 'nothing'}.\n" for verdict, text in said.items()]
    rows = [
        [c.statement, c.reported, "; ".join(f"{pane}: {numbers}" for pane, (numbers, _) in c.here.items()), c.extent]
        for c in found
    ]
    table = pd.DataFrame(rows, columns=["claim", "reported", "here", "verdict"])
    return [
        f"Comparisons: {'; '.join((q1['corpus'] + ', ' + q1['model']).unique())}. A run has about "
        f"{budgets} token_forwards; {seeds} seeds. The paper's runs are GPT-2 small for {STEPS} steps, so these "
        "answers are about the methods at a very small budget, not about its losses. GPT-2 small itself in its first "
        "steps stands below the questions.",
        "",
        *lines,
        report.markdown(table).rstrip("\n"),
        "",
        f"Reported: {SOURCE}. {_HOW} Of the rows in this table these chose an end of the list of rates, a wider one "
        f"may serve them better: {', '.join(sorted(answers.at_edge(q1))) or 'none'}.",
    ]


def _said(claim: claims.Claim) -> str:
    """A statement, with where it stands when not everywhere."""
    where = claim.extent.removeprefix(claim.verdict).strip()
    return f"{claim.statement} ({where})" if where else claim.statement


def _section(question: Question, frame: pd.DataFrame) -> list[str]:
    command = f"python -m figures {question.name} --rerun --preset laptop"
    made = [f"`{line}`" for line in dict.fromkeys(map(str, frame.attrs["command"])) if line != command]
    behind = f" Runs: {', '.join(made)}." if made else ""
    figure = f"![{question.title}](../figures/out/{question.name}.png)"
    return [*question.answer(frame), "", figure, "", f"Command: `{command}`.{behind}", ""]


def _closing(frames: dict[str, pd.DataFrame]) -> list[str]:
    asked = [frames[name] for name in ("q1", "q3", "q4") if name in frames]
    edges = "; ".join(sorted(set[str]().union(*map(answers.at_edge, asked))))
    return [
        "## What these runs cannot say",
        "",
        f"Rates at an end of the list that was tried, over all questions: {edges or 'none'}.",
        "",
        "`python -m figures.results` writes this page from figures/data.",
    ]


def _gpt2(frames: dict[str, pd.DataFrame]) -> list[str]:
    """The runs of GPT-2 small itself."""
    lines = ["## GPT-2 small itself", ""]
    if not set(GPT2) <= set(frames):
        return [*lines, "Not measured.", ""]
    spectra, losses = (frames[name] for name in GPT2)
    lines += [gpt2_answers.orders(losses), gpt2_answers.spectra(spectra), gpt2_answers.limits(losses), ""]
    for name, title in _PICTURES.items():
        lines += [f"![{title}](../figures/out/{name}.png)", ""]
    made = ", ".join(f"`{line}`" for line in dict.fromkeys(map(str, losses.attrs["command"])))
    return [*lines, f"Command: `python -m figures {' '.join(_PICTURES)} --rerun --preset laptop`. Runs: {made}.", ""]


def _glue(frames: dict[str, pd.DataFrame]) -> list[str]:
    """Whether what was pretrained without backprop serves downstream."""
    lines = ["## GLUE: transfer", ""]
    if "glue" not in frames:
        return [*lines, "Not measured.", ""]
    found = frames["glue"]
    made = ", ".join(f"`{line}`" for line in dict.fromkeys(map(str, found.attrs["command"])))
    picture = "![Scores on GLUE](../figures/out/glue.png)"
    return [*lines, *glue_answers.transfer(found), "", picture, "", f"Runs: {made}.", ""]


def read(folder: Path = DATA) -> dict[str, pd.DataFrame]:
    """Return the data that are there."""
    names = [*(question.name for question in QUESTIONS), *GPT2, "reproduction", "glue"]
    return {name: store.read(name, folder) for name in names if (folder / f"{name}.parquet").is_file()}


def main() -> None:
    """Write the page."""
    argparse.ArgumentParser(prog="python -m figures.results", description=__doc__).parse_args()
    PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
