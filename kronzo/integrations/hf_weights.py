"""GPT-2 between this package and transformers: weights both ways, folders that `from_pretrained` opens (extra hf).

The released code stores linear maps (in, out), as transformers' Conv1D; ours are (out, in), so four weights of every
block are transposed. All other names and shapes are the same.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from kronzo.errors import InputError, install
from kronzo.pretrain import checkpoint, gpt2, runs
from kronzo.pretrain.tokenizer import GPT2_RANKS, Tokenizer

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

_NEEDS = f"needs transformers; run {install('hf')}."
_END_OF_TEXT = "<|endoftext|>"
_GPT2_END = 50256
_PREFIX = "transformer."
_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
_FIXED: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False, None),
    "tie_word_embeddings": (True, None),
}
"""What a GPT-2 of transformers may set and ours cannot."""


def to_transformers(model: gpt2.GPT2) -> GPT2LMHeadModel:
    """Return the same model as a transformers.GPT2LMHeadModel, with weights of its own.

    Args:
        model: any of ours; where it has no biases, theirs are zero.

    Returns:
        In the same mode (training or evaluation), device and dtype; its logits equal ours up to rounding.

    Raises:
        InputError: transformers is not installed.
    """
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise InputError(f"a transformers model {_NEEDS}") from error
    shape, weight = model.config, model.wte.weight
    dropouts: Any = dict.fromkeys(_DROPOUTS, shape.dropout)
    end = _GPT2_END if shape.vocab_size > _GPT2_END else None
    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=end,
        eos_token_id=end,
        **dropouts,
    )
    theirs: Any = GPT2LMHeadModel(config)
    theirs.to(weight.device, weight.dtype)
    ours = {_PREFIX + name: _turned(name, tensor) for name, tensor in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(ours[name]) if name in ours else parameter.zero_()
    return theirs.train(model.training)


def from_transformers(model: GPT2LMHeadModel, *, dropout: float | None = None) -> gpt2.GPT2:
    """Return a transformers.GPT2LMHeadModel as our GPT2, with weights of its own.

    Args:
        model: with the head tied to the embedding, GELU in its tanh form and the standard attention scale.
        dropout: of ours; by default theirs, whose three probabilities must then be equal.

    Raises:
        InputError: a setting that ours does not have, by name.
    """
    shape = shape_of(model.config, dropout=dropout)
    weight = model.transformer.wte.weight
    ours = gpt2.GPT2(shape, device=weight.device, dtype=weight.dtype)
    theirs = dict(model.named_parameters())
    weights = {name: _turned(name, theirs[_PREFIX + name].detach()) for name, _ in ours.named_parameters()}
    checkpoint.load_weights(ours, weights, "the transformers model")
    return ours.train(model.training)


def shape_of(config: Any, *, dropout: float | None = None) -> gpt2.GPT2Config:
    """Return the shape that a transformers.GPT2Config describes.

    Raises:
        InputError: a setting that our model does not have, by name.
    """
    for key, allowed in _FIXED.items():
        value = getattr(config, key, allowed[0])
        if value not in allowed:
            raise InputError(f"{key} = {value!r}: our GPT2 has {allowed[0]!r} only; train it by ZeroOrderTrainer.")
    if config.n_inner not in (None, 4 * config.n_embd):
        raise InputError(f"n_inner = {config.n_inner}: our GPT2 has 4 n_embd = {4 * config.n_embd} only.")
    rates = {key: float(getattr(config, key)) for key in _DROPOUTS}
    if dropout is None and len(set(rates.values())) > 1:
        raise InputError(f"{rates} differ and our GPT2 has one dropout: pass dropout=.")
    return gpt2.GPT2Config(
        vocab_size=config.vocab_size,
        context=config.n_positions,
        layers=config.n_layer,
        heads=config.n_head,
        width=config.n_embd,
        dropout=rates["resid_pdrop"] if dropout is None else dropout,
    )


def starting_point(path: Path) -> dict[str, dict[str, Any]]:
    """Return the [model] and [data] of a run that starts from a folder of transformers: its shape and its tokenizer.

    Raises:
        InputError: transformers is missing, or the model has what ours has not.
    """
    try:
        from transformers import GPT2Config
    except ImportError as error:
        raise InputError(f"{path}: a Hugging Face folder {_NEEDS}") from error
    shape = shape_of(GPT2Config.from_pretrained(path, local_files_only=True))
    own = path / "tokenizer.json"
    tokenizer = str(own) if own.is_file() else "gpt2" if shape.vocab_size >= 50257 else None
    return {"model": asdict(shape), "data": {"tokenizer": tokenizer} if tokenizer else {}}


def load(path: Path | str) -> gpt2.GPT2:
    """Return our GPT2 from a local folder of transformers, in float32.

    Raises:
        InputError: transformers is missing or cannot open it, or it is a model that ours is not.
    """
    try:
        from transformers import GPT2LMHeadModel
    except ImportError as error:
        raise InputError(f"{path}: a Hugging Face folder {_NEEDS}") from error
    try:
        theirs = GPT2LMHeadModel.from_pretrained(path, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(f"{path}: transformers cannot open it ({str(error).splitlines()[0]}).") from error
    return from_transformers(theirs)


def export(run: Path | str, to: Path | str) -> list[Path]:
    """Write the newest checkpoint of a run as a folder that transformers' `from_pretrained` opens.

    Args:
        run: folder of a run.
        to: folder to write, absent or empty: config.json, model.safetensors, generation_config.json and, but for
            corpora without text, the tokenizer.

    Returns:
        The files written.

    Raises:
        InputError: no usable run, the folder holds something, or transformers is missing.
    """
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{to} is not empty: name a new folder.")
    model, tokenizer = runs.open_model(run)
    theirs = to_transformers(model)
    padding = list(range(tokenizer.num_ids, model.config.vocab_size))
    for config in (theirs.config, theirs.generation_config):
        config.bos_token_id = config.eos_token_id = tokenizer.end_of_text
    theirs.generation_config.suppress_tokens = padding or None
    theirs.save_pretrained(to)
    backend = _backend(tokenizer, Path(run) / "tokenizer")
    if backend is not None:
        from transformers import PreTrainedTokenizerFast

        end = backend.id_to_token(tokenizer.end_of_text)
        PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=end, eos_token=end, model_max_length=model.config.context
        ).save_pretrained(to)
    return sorted(path for path in to.iterdir() if path.is_file())


def _turned(name: str, tensor: Tensor) -> Tensor:
    """The tensor of a name as the other side stores it."""
    return tensor.T if name.endswith(_TRANSPOSED) else tensor


def _backend(tokenizer: Tokenizer, folder: Path) -> Any:
    """The same ids as a tokenizer of the library `tokenizers`; None for ids without a text."""
    import tokenizers
    from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

    if tokenizer.kind == "bpe":
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    if tokenizer.kind == "ids":
        return None
    if tokenizer.kind == "gpt2":
        backend = TikTokenConverter(str(folder / GPT2_RANKS)).tokenizer()
    else:
        backend = tokenizers.Tokenizer(tokenizers.models.BPE({c: byte for byte, c in bytes_to_unicode().items()}, []))
    words = tokenizer.kind == "gpt2"
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([_END_OF_TEXT])
    return backend
