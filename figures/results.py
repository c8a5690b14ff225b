"""docs/RESULTS.md from figures/data: `python -m figures.results` writes it; what has no data is not measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from figures import answers, store
from figures.drawing import DATA, ROOT
from kronzo.pretrain.reported import SOURCE
from kronzo.pretrain.units import count
from spectra import report

PAGE = ROOT.parent / "docs" / "RESULTS.md"
_HOW = (
    "Here, corpus by corpus in the order above: final validation losses, and the difference seed by seed with its 95 % "
    "interval (Student's t); a difference inside its interval decides nothing, and level means that the whole interval "
    f"is within {answers.LEVEL} nats. "
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
    return "\n".join([*lines, *_closing(frames)]).rstrip("\n") + "\n"


def _head(frames: dict[str, pd.DataFrame]) -> list[str]:
    if "q1" not in frames or "q6" not in frames:
        return ["The comparison of rules and orders is not measured."]
    q1 = frames["q1"]
    claims = answers.claims(q1, frames["q6"])
    said = {
        verdict: "; ".join(claim.statement for claim in claims if claim.verdict == verdict)
        for verdict in (answers.HOLDS, answers.FAILS, answers.MIXED, answers.OPEN)
    }
    seeds, last = q1["seed"].nunique(), answers.finals(q1)
    budgets = " or ".join(sorted({count(float(value)) for value in last["token_forwards"].round(-4).unique()}))
    lines = [f"**{verdict.capitalize()}:** {text or 'nothing'}.\n" for verdict, text in said.items()]
    table = pd.DataFrame(
        [[c.statement, c.reported, c.here, c.verdict] for c in claims], columns=["claim", "reported", "here", "verdict"]
    )
    return [
        f"Models of {', '.join(map(str, q1['model'].unique()))}; {', '.join(map(str, q1['corpus'].unique()))}; about "
        f"{budgets} token_forwards a run, {seeds} seeds. The paper's runs are GPT-2 small for 10 000 steps, so these "
        "answers are about the methods at a very small budget, not about its losses.",
        "",
        *lines,
        report.markdown(table).rstrip("\n"),
        "",
        f"Reported: {SOURCE}. {_HOW} Of the rows in this table these chose an end of the list of rates, a wider one "
        f"may serve them better: {', '.join(sorted(answers.at_edge(q1))) or 'none'}.",
    ]


def _section(question: Question, frame: pd.DataFrame) -> list[str]:
    command = f"python -m figures {question.name} --rerun --preset laptop"
    made = [f"`{line}`" for line in dict.fromkeys(map(str, frame.attrs["command"])) if line != command]
    behind = f" Runs: {', '.join(made)}." if made else ""
    figure = f"![{question.title}](../figures/out/{question.name}.png)"
    return [*question.answer(frame), "", figure, "", f"Command: `{command}`.{behind}", ""]


def _closing(frames: dict[str, pd.DataFrame]) -> list[str]:
    asked = [frames[name] for name in ("q1", "q3", "q4") if name in frames]
    edges = "; ".join(sorted(set[str]().union(*map(answers.at_edge, asked))))
    sizes = set(frames["q1"]["model"]) if "q1" in frames else set()
    missing = (
        "" if len(sizes) > 1 else "A second size of the model is not measured; its grid is figures/grids/size.toml. "
    )
    return [
        "## What these runs cannot say",
        "",
        f"Rates at an end of the list that was tried, over all questions: {edges or 'none'}.",
        "",
        f"{missing}GPT-2 small itself is not run. Its configurations are figures/grids/gpt2-fo.toml and "
        "figures/grids/gpt2-zo.toml; KRONZO_DATA names the folder of the OpenWebText sample:",
        "",
        "```sh",
        "kronzo pretrain figures/grids/gpt2-fo.toml --out runs/gpt2/fo",
        "kronzo pretrain figures/grids/gpt2-zo.toml --out runs/gpt2/zo",
        "```",
        "",
        "`python -m figures.results` writes this page from figures/data.",
    ]


def read(folder: Path = DATA) -> dict[str, pd.DataFrame]:
    """Return the data of the questions that are there."""
    return {q.name: store.read(q.name, folder) for q in QUESTIONS if (folder / f"{q.name}.parquet").is_file()}


def main() -> None:
    """Write the page."""
    argparse.ArgumentParser(prog="python -m figures.results", description=__doc__).parse_args()
    PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
