"""Singular-value spectra of the gradients of any torch model, while it trains."""

__version__ = "0.1.0"
