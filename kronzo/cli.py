"""The command `kronzo`. Heavy imports stay inside the commands, so that --help is immediate."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from kronzo import __version__
from kronzo.errors import InputError
from kronzo.pretrain import data_cli, glue_cli
from kronzo.pretrain.doctor import find_spectra
from kronzo.pretrain.replay_cli import replay
from kronzo.pretrain.torchrun import check_command

app = typer.Typer(
    name="kronzo",
    help="Zeroth-order pretraining, measured: KronZO beside low-rank, dense and first-order training.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_cli.app)
app.command()(glue_cli.glue)
_INTERRUPTED = 130
"""What typer ends with after Ctrl-C, without a word."""
_ABOUT = "kronzo trains language models without backprop and measures what that buys."
_EXAMPLES = (
    "kronzo reproduce                                the main job, with a report",
    "kronzo pretrain --method kronzo --data my.txt   any method on any text",
    "kronzo doctor                                   what is here, what is missing",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"kronzo {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    check_command(context.invoked_subcommand)
    if context.invoked_subcommand is None:
        from spectra.welcome import welcome

        typer.echo(welcome(context, _ABOUT, _EXAMPLES))


@app.command()
def reproduce(
    preset: Annotated[str, typer.Option(help="laptop (<= 15 minutes), smoke, test or paper.")] = "laptop",
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default runs/reproduce-PRESET.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change the preset, e.g. methods.mezo.lr=[1e-3]; may be repeated.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of going on.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run the main job and write its report.

    Spectra of first-order pretraining, then all methods at equal budget. The same command goes on where it stopped.
    """
    from kronzo.pretrain import reproduce as main_job
    from kronzo.pretrain.plan import read_plan

    out = out or Path("runs") / f"reproduce-{preset}"
    plan = read_plan(preset, set_ or ())
    main_job.reproduce(
        plan, out, preset=preset, command=main_job.command_line(), fresh=fresh, progress=not quiet, say=typer.echo
    )


@app.command()
def pretrain(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file, a run folder to go on with, or PRESET:ROW of a preset.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="nano, micro, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="adamw, sgd, kronzo, lozo, subzero, mezo, ...")] = None,
    data: Annotated[str | None, typer.Option(help="pydocs, pytopics, synthetic, a file or a folder.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="bytes, bpe:512, gpt2 or a tokenizer.json.")] = None,
    init: Annotated[str | None, typer.Option(help="Start from a run, a checkpoint or a .safetensors file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/METHOD-HASH.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, may be repeated.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of going on.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write RUN/tensorboard as well.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Pretrain a GPT-2 with any method on any text.

    The same command goes on where it stopped.
    """
    from kronzo.pretrain import launch

    chosen = launch.compose(
        config, model=model, method=method, data=data, tokenizer=tokenizer, init=init, settings=set_ or ()
    )
    folder = out or launch.default_out(chosen, config)
    if line := launch.run(chosen, folder, fresh=fresh, progress=not quiet, tensorboard=tensorboard):
        typer.echo(line)


@app.command()
def compare(
    grid: Annotated[Path, typer.Argument(help="TOML: seeds, comparison, tuning, methods.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default runs/compare-NAME.")] = None,
    shard: Annotated[str, typer.Option(help="i/n: the i-th of n parts of the rows; jobs may share --out.")] = "1/1",
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; by default one a core.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change the grid, e.g. seeds=[0,1]; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Compare methods x settings x seeds, every row tuned alike.

    All at equal budget. The same command goes on where it stopped.
    """
    from kronzo.pretrain import comparison
    from kronzo.pretrain.compare import compare as run_grid
    from kronzo.pretrain.grid import read_grid, shard_of

    part, folder = shard_of(shard), out or Path("runs") / f"compare-{grid.stem}"
    table = run_grid(read_grid(grid, set_ or ()), folder, shard=part, workers=workers, progress=not quiet)
    typer.echo(comparison.as_json(table) if as_json else comparison.as_text(table))
    if not as_json:
        typer.echo(f"Table: {folder / comparison.TABLE}")


@app.command("lr-range")
def lr_range(
    source: Annotated[Path, typer.Argument(help="A TOML file, or a run folder: its newest weights are the start.")],
    low: Annotated[float, typer.Option(help="Lowest lr.")] = 1e-6,
    high: Annotated[float, typer.Option(help="Highest lr.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Steps, lr rising by equal factors.")] = 60,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, may be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("lr-range.png"),
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Probe learning rates on one batch and suggest one."""
    from kronzo.pretrain import lr_range as test

    found = test.lr_range(
        test.prepared(source, list(set_ or ())), low=low, high=high, num_steps=steps, progress=not quiet
    )
    test.draw(found, out)
    typer.echo(f"{found}\nPicture: {out}")


@app.command()
def memory(
    model: Annotated[str, typer.Argument(help="nano, micro, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl.")],
    batch: Annotated[int, typer.Option(help="Sequences a step.")] = 1,
    context: Annotated[int | None, typer.Option(help="Tokens in each; by default the model's context.")] = None,
    method: Annotated[str, typer.Option(help="adamw, sgd, kronzo, lozo, subzero, mezo, ...")] = "kronzo",
    dtype: Annotated[str, typer.Option(help="Of the weights: float32 or bfloat16.")] = "float32",
    checkpoint_blocks: Annotated[
        bool, typer.Option("--checkpoint-blocks", help="Keep one activation a block.")
    ] = False,
    full_logits: Annotated[bool, typer.Option("--full-logits", help="Hold the logits of all tokens at once.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    budget: Annotated[float | None, typer.Option(help="GiB; by default what is free now.")] = None,
    predict: Annotated[bool, typer.Option("--predict", help="Do not measure.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict and measure the peak memory of a step, by part.

    And the largest batch that fits. Measured in processes of their own; a model that does not fit is predicted only.
    """
    from kronzo.pretrain import gpt2
    from kronzo.pretrain import memory as examination

    shape = gpt2.config(model)
    job = examination.Job(
        shape, batch, context or shape.context, method, dtype, checkpoint_blocks, full_logits, device=device
    )
    found = examination.examine(job, None if budget is None else int(budget * 2**30), measure_too=not predict)
    typer.echo(examination.as_json(found) if as_json else examination.as_text(found, model))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what is here: versions, devices, extras, corpora, data."""
    from kronzo.pretrain import doctor as examination

    found = examination.examine()
    typer.echo(examination.as_json(found) if as_json else examination.as_text(found))


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    prompt: Annotated[str, typer.Argument(help="Text to continue.")] = "",
    tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
) -> None:
    """Continue a prompt with the model of a run."""
    from kronzo.pretrain import runs

    typer.echo(runs.sample(run, prompt, tokens=tokens, temperature=temperature, seed=seed))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    to: Annotated[Path, typer.Option("--to", help="Folder to write, absent or empty.")],
) -> None:
    """Write a run as a folder that Hugging Face opens.

    By from_pretrained, with weights, configuration and tokenizer (extra hf).
    """
    from kronzo.integrations import hf_weights

    for path in hf_weights.export(run, to):
        typer.echo(path)
    typer.echo(f'Open it: transformers.AutoModelForCausalLM.from_pretrained("{to}")')


app.command()(replay)


@app.command("runs")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs: method, budget done, last validation loss."""
    from kronzo.pretrain import runs

    table = runs.list_runs(folder)
    typer.echo(table.to_json(orient="records") if as_json else runs.as_text(table))


@app.command("spectra")
def spectra_of(
    source: Annotated[Path, typer.Argument(help="Run, checkpoint, checkpoints folder or Hugging Face folder.")],
    data: Annotated[str | None, typer.Option(help="Corpus; by default the run's own.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="With --data; by default the run's own.")] = None,
    batches: Annotated[int, typer.Option(help="An even number of batches; their halves give the noise null.")] = 8,
    batch_size: Annotated[int, typer.Option(help="Sequences in a batch.")] = 8,
    context: Annotated[int | None, typer.Option(help="Tokens in a sequence.")] = None,
    seed: Annotated[int, typer.Option(help="Of the batches.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Spectra store to write.")] = None,
    growth: Annotated[Path | None, typer.Option(help="Folder for rank against tokens instead, with controls.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the gradient spectra of a model one already has.

    Signal against mini-batch noise, at fixed weights.
    """
    from kronzo.pretrain import snapshots
    from spectra.report import render

    stream: dict[str, Any] = {"batches": batches, "batch_size": batch_size, "context": context, "seed": seed}
    stream |= {"data": data, "tokenizer": tokenizer}
    if growth is not None:
        for path in snapshots.growth(source, growth, **stream):
            typer.echo(path)
        return
    run = snapshots.snapshots(source, **stream, out=out)
    typer.echo(render(run, "json" if as_json else "table"), nl=False)


def _refuse_namesake(command: str) -> None:
    """Exit when `import spectra` would find the colour package of the same name; nothing is imported for it."""
    spectra = find_spectra()
    if not spectra["ours"]:
        found = f"{spectra['home']}, the colour package" if spectra["home"] else "no package"
        typer.echo(
            f"{command}: `import spectra` finds {found}; kronzo brings a spectra of its own; "
            "uninstall the other and install kronzo again",
            err=True,
        )
        sys.exit(2)


def spectra_main() -> None:
    """The command `spectra`, entered here: where the other package took its place, `spectra.cli` could not say so."""
    _refuse_namesake("spectra")
    from spectra.cli import main as run

    run()


def main() -> None:
    """Run the command; what a user can cause is one sentence and exit code 2."""
    _refuse_namesake("kronzo")
    from spectra.errors import InputError as SpectraInputError

    before, warnings.formatwarning = warnings.formatwarning, lambda message, *place: f"kronzo: warning: {message}\n"
    try:
        app()
    except (InputError, SpectraInputError) as error:
        typer.echo(f"kronzo: {error}", err=True)
        sys.exit(2)
    except SystemExit as ending:
        if ending.code == _INTERRUPTED:
            typer.echo("kronzo: stopped; the same command goes on where it stood.", err=True)
        raise
    finally:
        warnings.formatwarning = before


if __name__ == "__main__":
    main()
