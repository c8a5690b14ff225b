"""Every drawing, in the order in which they are shown."""

from __future__ import annotations

from figures import fig_glue, fig_gpt2, fig_memory, fig_questions, fig_rosenbrock, fig_spectra, tables

DRAWINGS = (
    *fig_spectra.DRAWINGS,
    *fig_gpt2.DRAWINGS,
    *fig_rosenbrock.DRAWINGS,
    *fig_memory.DRAWINGS,
    *tables.DRAWINGS,
    *fig_questions.DRAWINGS,
    *fig_glue.DRAWINGS,
)
