"""GPT-2 in one file: pre-LayerNorm decoder, learned positions, tied head, weights stored (out, in).

Source: Radford et al. 2019 and its released code; parameter names follow that release (`wte.weight`,
`h.0.attn.c_attn.weight`, ...), so that the pretrained weights map one to one (transposed, since the release
stores (in, out)).
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from kronzo.errors import InputError

MAX_LOGITS = 1 << 23
_GELU_SLOPE = 2 * math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class GPT2Config:
    """Shape of a model: all that fixes its parameters.

    Args:
        vocab_size: rows of the embedding, padding included.
        context: the longest sequence, in tokens.
        layers: number of blocks.
        heads: attention heads a block; divides width.
        width: size of the residual stream.
        bias: whether linear maps and LayerNorms have a bias.
        dropout: probability, applied to the embedding, the attention and both residual branches while training.
    """

    vocab_size: int = 50304
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for key in ("vocab_size", "context", "layers", "heads", "width"):
            if getattr(self, key) < 1:
                raise InputError(f"model.{key} = {getattr(self, key)}: a whole number of at least 1 is needed.")
        if self.width % self.heads:
            raise InputError(f"model.width = {self.width} is not a multiple of model.heads = {self.heads}: change one.")
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"model.dropout = {self.dropout}: a probability in [0, 1) is needed.")


MODELS = {
    "nano": GPT2Config(vocab_size=512, context=64, layers=2, heads=2, width=48),
    "micro": GPT2Config(vocab_size=512, context=128, layers=4, heads=4, width=128),
    "mini": GPT2Config(vocab_size=4096, context=256, layers=6, heads=6, width=384),
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(layers=24, heads=16, width=1024),
    "gpt2-large": GPT2Config(layers=36, heads=20, width=1280),
    "gpt2-xl": GPT2Config(layers=48, heads=25, width=1600),
}


def config(name: str, **overrides: Any) -> GPT2Config:
    """Return the shape called `name`, with some fields replaced.

    Args:
        name: "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl" (124 M to 1.56 B parameters; vocabulary 50257
            padded to 50304), or one of the small "nano", "micro", "mini".
        **overrides: fields of GPT2Config.

    Raises:
        InputError: unknown name, or fields that do not fit together.
    """
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)[0]
        raise InputError(f"model.name = {name!r} is unknown: {', '.join(MODELS)} are known; did you mean {near!r}?")
    return replace(MODELS[name], **overrides)


class Attention(nn.Module):
    """Causal self-attention with one fused map for query, key and value."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Mix positions: (batch, time, width) to the same."""
        batch, time, width = x.shape
        qkv = self.c_attn(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True, dropout_p=dropout)
        return self.c_proj(y.transpose(1, 2).reshape(batch, time, width))


class MLP(nn.Module):
    """Two linear maps around a GELU (tanh form, as GPT-2 was trained)."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position: (..., width) to the same."""
        return self.c_proj(_gelu(self.c_fc(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.ln_1 = nn.LayerNorm(config.width, bias=config.bias)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both branches to the residual stream (batch, time, width)."""
        x = x + _dropped(self, self.attn(self.ln_1(x)))
        return x + _dropped(self, self.mlp(self.ln_2(x)))


class GPT2(nn.Module):
    """The language model; its head is the embedding `wte.weight` itself, so tied weights are one parameter.

    Args:
        config: the shape.
        seed: of the initial weights, drawn on the CPU in float32: equal for every device.
        device: where the parameters live; "meta" gives shapes without numbers.
        dtype: of the parameters.

    Initialisation: N(0, 0.02^2), the two maps into the residual stream N(0, 0.02^2 / (2 layers)), biases 0, gains 1.
    Cost of a forward: 2 x parameters x tokens flops, attention apart. `use` says how forwards are computed.
    """

    def __init__(
        self,
        config: GPT2Config,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.config = config
        self.dropout = config.dropout
        self.autocast = self.checkpoint_blocks = False
        with torch.device("meta"):
            self.wte = nn.Embedding(config.vocab_size, config.width)
            self.wpe = nn.Embedding(config.context, config.width)
            self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
            self.ln_f = nn.LayerNorm(config.width, bias=config.bias)
        self.to(dtype=dtype)
        if torch.device(device).type != "meta":
            self.to_empty(device=device)
            self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        residual = 0.02 / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(float("ln_" in name and name.endswith("weight")))
            else:
                plain = parameter.dtype == torch.float32 and parameter.device.type == "cpu"
                drawn = parameter if plain else torch.empty(parameter.shape)
                drawn.normal_(0.0, residual if name.endswith("c_proj.weight") else 0.02, generator=generator)
                parameter.copy_(drawn)

    def use(self, *, precision: str = "float32", compile: bool = False, checkpoint_blocks: bool = False) -> GPT2:
        """Say how the forwards of training are computed; losses in evaluation mode stay in the weights' precision.

        Args:
            precision: "float32" computes in the weights' dtype; "bfloat16" multiplies matrices in bfloat16 (autocast),
                two to three times as fast where the processor has such instructions, with losses accurate to three
                digits instead of seven.
            compile: run the blocks through torch.compile, which needs a C++ compiler and a minute at the start.
            checkpoint_blocks: with gradients, keep one activation a block and compute the rest again in the backward.

        Returns:
            The model itself.
        """
        self.autocast, self.checkpoint_blocks = precision == "bfloat16", checkpoint_blocks
        if compile:
            self.hidden = torch.compile(self.hidden)  # type: ignore[method-assign]
        return self

    @property
    def num_parameters(self) -> int:
        """Number of distinct parameters, the tied head counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def hidden(self, x: Tensor) -> Tensor:
        """Return the last layer's normalised features.

        Args:
            x: token ids, int64 (batch, time) with time <= context.

        Returns:
            (batch, time, width).

        Raises:
            InputError: sequences longer than the context.
        """
        if x.shape[-1] > self.config.context:
            raise InputError(
                f"a sequence of {x.shape[-1]} tokens exceeds model.context = {self.config.context}: cut it."
            )
        stream = _dropped(self, F.embedding(x, self.wte.weight) + self.wpe.weight[: x.shape[-1]])
        for block in self.h:
            if self.checkpoint_blocks and torch.is_grad_enabled():
                stream = checkpoint(block, stream, use_reentrant=False)
            else:
                stream = block(stream)
        return self.ln_f(stream)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of every position: int64 (batch, time) to (batch, time, vocab_size)."""
        return F.linear(self.hidden(x), self.wte.weight)

    def token_losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of each target, in nats.

        Logits of at most 2^23 entries (32 MB) exist at once. With gradients, a chunk's logits are computed again in the
        backward instead of being kept. torch's own chunked linear_cross_entropy gives the same at several times the
        time: 2.9 s without and 10.0 s with backward for 512 x 768 against 50304 rows (one thread, torch 2.13), where a
        loop that computes its logits again takes 0.4 s and 1.8 s.

        Args:
            x: token ids, int64 (batch, time).
            y: the targets, same shape.

        Returns:
            float32 (batch, time).
        """
        autocast = self.autocast and self.training
        with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast, cache_enabled=torch.is_grad_enabled()):
            hidden = self.hidden(x).view(-1, self.config.width)
        weight, target = self.wte.weight, y.reshape(-1)
        if autocast:
            hidden, weight = hidden.bfloat16(), weight.bfloat16()
        if target.numel() * self.config.vocab_size <= MAX_LOGITS:
            return _chunk_losses(hidden, weight, target).view(y.shape)
        rows = max(1, MAX_LOGITS // self.config.vocab_size)
        losses: Tensor = _ChunkedLosses.apply(hidden, weight, target, rows)
        return losses.view(y.shape)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats a token: token losses in float32, their mean a float64 scalar."""
        return self.token_losses(x, y).mean(dtype=torch.float64)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy of each sequence, float64 (batch,)."""
        return self.token_losses(x, y).mean(dim=-1, dtype=torch.float64)


def _dropped(module: Any, x: Tensor) -> Tensor:
    return F.dropout(x, module.dropout) if module.training and module.dropout else x


def _gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form; without gradients x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), equal to 6e-7.

    torch's CPU kernel of the tanh form takes two to five times as long as this, a tenth of a small forward.
    """
    if torch.is_grad_enabled() or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return F.gelu(x, approximate="tanh")
    gate = x * x
    gate.mul_(0.044715 * _GELU_SLOPE).add_(_GELU_SLOPE).mul_(x).sigmoid_()
    return gate.mul_(x)


def _chunk_losses(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), target, reduction="none")


class _ChunkedLosses(torch.autograd.Function):
    """Token losses of hidden (n, width) against targets (n,), with `rows` rows of logits at a time both ways.

    The logits of all chunks share one buffer and their softmax another: allocated afresh for each chunk they fragment
    the heap, which cost a forward of GPT-2 small on 4 x 256 tokens 160 MiB.

    With P = softmax(H W^T) less the one-hot targets, each row times its incoming gradient: dH = P W and dW = P^T H,
    summed over the chunks in one float32 buffer.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(hidden, weight, target)
        ctx.rows = rows
        losses = torch.empty(target.shape, dtype=torch.float32, device=hidden.device)
        logits, logarithms = hidden.new_empty(rows, len(weight)), losses.new_empty(rows, len(weight))
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            here = slice(len(target[part]))
            torch.mm(hidden[part], weight.T, out=logits[here])
            torch.log_softmax(logits[here], -1, dtype=torch.float32, out=logarithms[here])
            losses[part] = -logarithms[here].gather(1, target[part, None]).squeeze(1)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, target = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=torch.float32 if weight.dtype.itemsize < 4 else weight.dtype)
        logits, softmax = hidden.new_empty(ctx.rows, len(weight)), of_weight.new_empty(ctx.rows, len(weight))
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            here = slice(len(target[part]))
            torch.mm(hidden[part], weight.T, out=logits[here])
            p = torch.softmax(logits[here], -1, dtype=of_weight.dtype, out=softmax[here])
            p.scatter_add_(1, target[part, None], -torch.ones_like(p[:, :1]))
            p.mul_(gradient[part, None])
            torch.mm(p.to(weight.dtype), weight, out=of_hidden[part])
            of_weight.addmm_(p.T, hidden[part].to(p.dtype))
        return of_hidden, of_weight.to(weight.dtype), None, None
