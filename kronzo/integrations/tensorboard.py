"""A run in TensorBoard while it trains: its log and its spectra, read from its folder (extra tensorboard)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from kronzo.errors import InputError, install
from kronzo.pretrain.log import FILE

FOLDER = "tensorboard"
_TAGS = {
    "loss": "loss/training",
    "val_loss": "loss/validation",
    "lr": "step/lr",
    "eps": "step/eps",
    "grad_norm": "step/grad_norm",
    "accepted": "step/accepted",
    "coefficient_mean": "coefficients/mean",
    "coefficient_rms": "coefficients/rms",
    "resolution": "coefficients/resolution",
}


class Board:
    """Writes RUN/tensorboard from what a run has logged; `update` may be the `watch` of `pretrain`.

    A run that goes on may first cut its log back to its checkpoint. So a board always starts over and writes the whole
    log again, and nothing is read before the run has begun.

    Args:
        run: the run folder, which may not exist yet.

    Raises:
        InputError: tensorboard is not installed.
    """

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError(f"--tensorboard needs tensorboard; run {install('tensorboard')}.") from error
        self._run, self._offset, self._begun = run, 0, False
        self._make: Any = SummaryWriter
        self._writer: Any = None

    def update(self, fraction: float = 0.0) -> None:
        """Write what is new in the log; the first call says that the run begins."""
        if self._begun:
            self._write_log()
        self._begun = True

    def close(self) -> None:
        """Write the rest of the log, and the stable rank of every layer where spectra were captured."""
        self._write_log()
        self._write_spectra()
        if self._writer is not None:
            self._writer.close()

    def _scalar(self, tag: str, value: float, step: int) -> None:
        if self._writer is None:
            shutil.rmtree(self._run / FOLDER, ignore_errors=True)
            self._writer = self._make(str(self._run / FOLDER))
        self._writer.add_scalar(tag, value, step)

    def _write_log(self) -> None:
        """Write the whole lines that the log has gained."""
        path = self._run / FILE
        if not path.is_file() or path.stat().st_size <= self._offset:
            return
        with path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            record = json.loads(line)
            for key, tag in _TAGS.items():
                if record.get(key) is not None:
                    self._scalar(tag, float(record[key]), record["step"])

    def _write_spectra(self) -> None:
        store = self._run / "spectra"
        if not store.is_dir():
            return
        import spectra

        frame = spectra.open(store).frame
        rows = frame[(frame["quantity"] == "gradient") & frame["stable_rank"].notna()]
        for step, layer, value in rows[["step", "layer", "stable_rank"]].to_numpy():
            self._scalar(f"stable_rank/{layer}", float(value), int(step))
