"""Which parameters of a model are analysed, under which name, as which matrix; a reason for every one left out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from spectra.errors import InputError, nearest
from spectra.wrappers import unwrap

KINDS = ("embedding", "attention", "mlp", "other")

Selection = str | Sequence[str] | Callable[[str, nn.Parameter], bool]

_ATTENTION = re.compile(r"attn|attention|(^|[._])([qkvo]|query|key|value|out)_proj|in_proj|qkv", re.IGNORECASE)
_MLP = re.compile(
    r"mlp|ffn|feed_?forward|(^|[._])(c_fc|fc\d?|linear[12]|gate_proj|up_proj|down_proj|intermediate)", re.I
)
_EMBEDDING = re.compile(r"(^|[._])(wte|wpe|\w*embed\w*)([._]|$)", re.IGNORECASE)
_FUSED_QKV = re.compile(r"(^|[._])(c_attn|in_proj_weight|qkv|qkv_proj|Wqkv)([._]|$)")
_WRAPPER_NAMES = {"_orig_mod", "_checkpoint_wrapped_module"}
_SHARDED = {"FullyShardedDataParallel", "DTensor"}


@dataclass(frozen=True)
class Layer:
    """One parameter of the model, as the analysis sees it.

    Attributes:
        name: its first name in `named_parameters()`, without what DistributedDataParallel and torch.compile add.
        kind: "embedding", "attention", "mlp" or "other".
        shape: of the parameter.
        transposed: whether the weight is stored (in, out), as transformers' Conv1D does, and is turned to (out, in).
        reason: why it is not analysed ("" when it is): "frozen", "1-D", "not selected", ...
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    transposed: bool
    reason: str

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(rows, columns) of the matrix that is analysed: (out, in)."""
        folded = self.shape[0], math.prod(self.shape[1:])
        return folded[::-1] if self.transposed else folded

    @property
    def orientation(self) -> str:
        """How the matrix stands to the stored weight: "as stored", "transposed" or "folded" (3-D and higher)."""
        return "transposed" if self.transposed else "folded" if len(self.shape) > 2 else "as stored"

    def matrix(self, tensor: Tensor) -> Tensor:
        """Return the gradient (or anything of the parameter's shape) as the (out, in) matrix that is analysed."""
        dense = tensor.coalesce().to_dense() if tensor.is_sparse else tensor
        folded = dense.detach().flatten(1)
        return folded.T if self.transposed else folded

    def parts(self, matrix: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield ("q" | "k" | "v", block of rows) of a fused attention projection; nothing for any other layer."""
        rows, columns = matrix.shape
        if _FUSED_QKV.search(self.name) and rows == 3 * columns:
            yield from zip("qkv", matrix.split(columns), strict=True)


def kind_of(name: str, owner: nn.Module) -> str:
    """Return the kind of a parameter by the class of its module and, failing that, by its name."""
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    if isinstance(owner, nn.MultiheadAttention) or _ATTENTION.search(name):
        return "attention"
    if _MLP.search(name):
        return "mlp"
    return "embedding" if _EMBEDDING.search(name) else "other"


def _chooser(layers: Selection) -> Callable[[str, str, nn.Parameter], bool]:
    if callable(layers):
        return lambda name, kind, parameter: bool(layers(name, parameter))
    patterns = [layers] if isinstance(layers, str) else list(layers)
    return lambda name, kind, parameter: any(
        kind == pattern if pattern in KINDS else fnmatchcase(name, pattern) for pattern in patterns
    )


def _reason(parameter: nn.Parameter, chosen: bool) -> str:
    if parameter.ndim < 2:
        return "1-D"
    if parameter.numel() == 0:
        return "empty"
    if not parameter.is_floating_point():
        return f"not real floating point ({parameter.dtype})"
    if not chosen:
        return "not selected"
    return "" if parameter.requires_grad else "frozen"


def _refuse_sharded(model: nn.Module) -> None:
    """Raise when parameters are pieces of a matrix, whose spectrum is not the matrix's."""
    for module in model.modules():
        if type(module).__name__ in _SHARDED:
            raise InputError(
                "the model is wrapped in FullyShardedDataParallel; spectra need whole gradients; "
                "use DistributedDataParallel, or spectra.snapshot on the unsharded model"
            )
    for name, parameter in model.named_parameters():
        if type(parameter).__name__ in _SHARDED or type(parameter.data).__name__ in _SHARDED:
            raise InputError(
                f"{name} is a DTensor (FSDP2 or tensor parallel); spectra need whole gradients; "
                "use DistributedDataParallel, or spectra.snapshot on the unsharded model"
            )


def inventory(model: nn.Module, layers: Selection = "*") -> list[tuple[Layer, nn.Parameter]]:
    """Return every parameter of the model once (tied ones under the first name), with how it is analysed or why not.

    Args:
        model: any module; walked anew at every capture, so that late-unfrozen and replaced parameters are found.
        layers: a glob over names, a kind ("attention"), a list of either, or a callable (name, parameter) -> bool.

    Raises:
        InputError: no parameters, sharded ones, or a selection that matches no matrix (the nearest name is suggested).
    """
    _refuse_sharded(model)
    model = unwrap(model)
    owners = dict(model.named_modules())
    chosen = _chooser(layers)
    found: list[tuple[Layer, nn.Parameter]] = []
    for full_name, parameter in model.named_parameters():
        owner = owners[full_name.rpartition(".")[0]]
        name = ".".join(word for word in full_name.split(".") if word not in _WRAPPER_NAMES)
        kind = kind_of(name, owner)
        transposed = type(owner).__name__ == "Conv1D" and parameter.ndim == 2 and hasattr(owner, "nf")
        reason = _reason(parameter, chosen(name, kind, parameter))
        found.append((Layer(name, kind, tuple(parameter.shape), transposed, reason), parameter))
    _check_selection(found, layers)
    return found


def _check_selection(found: list[tuple[Layer, nn.Parameter]], layers: Selection) -> None:
    matrices = [layer.name for layer, _ in found if layer.reason in ("", "not selected", "frozen")]
    if not matrices:
        raise InputError(
            "the model has no weight matrix; spectra need parameters of two dimensions; pass another model"
        )
    if all(layer.reason not in ("", "frozen") for layer, _ in found):
        given = layers if isinstance(layers, str) else repr(layers)
        raise InputError(f"layers={given} selects no matrix; {nearest(given, [*matrices, *KINDS])}")


def epsilon(dtype: torch.dtype) -> float:
    """Return the machine epsilon of the dtype a gradient was computed in."""
    return float(torch.finfo(dtype).eps)
