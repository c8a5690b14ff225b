"""table1 to table4: what a direction stores, factor shapes, the two rules, zeroth order against first order."""

from __future__ import annotations

import pandas as pd

from figures.drawing import Drawing
from figures.frames import last_points, seeds
from kronzo.pretrain.comparison import interval
from kronzo.pretrain.reported import COMPRESSION, ROWS, SOURCE, XL
from kronzo.pretrain.results import label_of
from kronzo.pretrain.units import count

C_ATTN = "c_attn"


def storage_table(frame: pd.DataFrame) -> pd.DataFrame:
    """What one direction stores of GPT-2 small's c_attn, with the compression that the paper reports."""
    rows = frame[frame["matrix"] == C_ATTN].copy()
    rows["reported_compression"] = [COMPRESSION.get(label, float("nan")) for label in rows["label"]]
    shown = ["label", "X", "kept", "stored", "compression", "reported_compression", "rank"]
    return rows[shown].fillna({"X": "", "kept": ""}).reset_index(drop=True)


def storage_caption(frame: pd.DataFrame) -> str:
    """Caption of table1."""
    row = frame[frame["matrix"] == C_ATTN].iloc[0]
    return (
        f"Numbers that one direction stores for GPT-2 small's {C_ATTN} ({row['rows']} x {row['cols']}): coordinates X "
        "and kept factors; compression is numbers of the matrix for each stored one, 1 where the direction is as large "
        f"as the matrix and regenerated; rank is the largest a move can have. Reported: {SOURCE}."
    )


def factors_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Kronecker factors of every kind of matrix in GPT-2 small."""
    rows = frame[frame["method"] == "kronzo"].rename(columns={"X": "A", "kept": "B"})
    return rows[["matrix", "rows", "cols", "A", "B", "stored", "compression", "rank"]].reset_index(drop=True)


def factors_caption(frame: pd.DataFrame) -> str:
    """Caption of table2."""
    return (
        "KronZO's factor shapes (Algorithm 1) for the matrices of GPT-2 small, what a direction stores, and the "
        f"largest rank of a move; the paper reports a compression of {COMPRESSION['KronZO']:.0f} for {C_ATTN}."
    )


def _final(frame: pd.DataFrame, method: str, rule: str) -> pd.DataFrame:
    """The last evaluations of a method under a rule at equal token_forwards."""
    last = last_points(frame)
    same_rule = last["rule"].fillna("") == rule
    return last[(last["method"] == method) & same_rule & (last["budget"] == "token_forwards")]


def _mean(frame: pd.DataFrame, column: str = "val_loss") -> float:
    return interval(frame[column].astype(float).tolist())[0]


def rules_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Averaging against directional: the paper's training losses, and ours on held-out text at equal token_forwards."""
    reported = {(row.method, row.rule): row.loss for row in ROWS}
    rows = []
    for method in ("kronzo", "lozo", "mezo"):
        ours = {rule: _final(frame, method, rule) for rule in ("average", "directional")}
        row: dict[str, object] = {"method": label_of(method)}
        row |= {f"reported_{rule}": reported[method, rule] for rule in ours}
        row["reported_difference"] = reported[method, "directional"] - reported[method, "average"]
        row |= {rule: _mean(found) for rule, found in ours.items()}
        row["difference"] = _mean(ours["directional"]) - _mean(ours["average"])
        row["seeds"] = min(len(found) for found in ours.values())
        rows.append(row)
    return pd.DataFrame(rows)


def rules_caption(frame: pd.DataFrame) -> str:
    """Caption of table3."""
    budget = float(_final(frame, "kronzo", "average")["token_forwards"].max())
    return (
        "Averaging against the directional rule. Reported: final training loss (nats a token), 50 directions averaged, "
        f"33 searched, equal forwards, one seed; {SOURCE}. Ours: final validation loss at {count(budget)} "
        f"token_forwards, {seeds(frame)}, {_corpus(frame)}; unigram "
        f"line {frame['unigram'].iloc[0]:.3f}. Empty: not run here."
    )


def _corpus(frame: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(str(corpus["source"]) for corpus in frame.attrs["corpus"]))


def orders_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Zeroth order against first order: loss, seconds a step and memory, reported beside ours."""
    reported = {(row.method, row.rule): row for row in ROWS}
    keys = dict.fromkeys([*reported, *zip(frame["method"], frame["rule"].fillna(""))])
    floor = _mean(_final(frame, "adamw", ""))
    rows = []
    for method, rule in keys:
        paper, ours = reported.get((method, rule)), _final(frame, method, rule)
        rows.append(
            {
                "method": label_of(f"{method}-{rule}".removesuffix("-")),
                "reported_loss": paper.loss if paper else float("nan"),
                "reported_seconds_per_step": paper.seconds if paper else float("nan"),
                "reported_memory_gb": paper.memory_gb if paper else float("nan"),
                "val_loss": _mean(ours),
                "minus_adamw": _mean(ours) - floor,
                "steps": _mean(ours, "step"),
                "seconds_per_step": (ours["seconds"] / ours["step"].astype(float)).mean(),
                "peak_gb": _mean(ours, "peak_bytes") / 1e9,
                "seeds": len(ours),
            }
        )
    return pd.DataFrame(rows)


def orders_caption(frame: pd.DataFrame) -> str:
    """Caption of table4."""
    xl = "; ".join(
        f"{label_of(row.method)} {row.loss:.2f}, {row.memory_gb:g} GB, {row.seconds:g} s a step" for row in XL
    )
    return (
        "Zeroth order against first order. Reported: final training loss, seconds a step, GB allocated between steps; "
        f"{SOURCE}; for GPT-2 XL it reports {xl}. Ours: final validation loss at equal token_forwards, "
        f"{seeds(frame)}, {_corpus(frame)}; peak "
        "resident set of the whole process, most of which is the interpreter for so small a model. Empty: not run here "
        "or not reported."
    )


DRAWINGS = (
    Drawing("table1", ("storage",), storage_table, storage_caption),
    Drawing("table2", ("storage",), factors_table, factors_caption),
    Drawing("table3", ("reproduction",), rules_table, rules_caption),
    Drawing("table4", ("reproduction",), orders_table, orders_caption),
)
