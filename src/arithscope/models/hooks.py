"""Changing and watching a forward pass at heads, neurons, residual stream and attention.

Everything is a context manager that removes its hooks. A pass has `variants × batch` rows, variant-major: row v·B + b is
prompt b under variant v. A plain pass has one variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from arithscope.errors import UserError
from arithscope.models.model import Model, Site
from arithscope.models.offload import fetched_again


@dataclass(frozen=True, eq=False)
class Edit:
    """At one layer and site, set the components in `entries` to `values` at some token positions.

    entries  which components of which variant and prompt, with size 1 wherever it is the same for all
    values   what they become (0 for zero ablation, a mean, a counterfactual's activation); size 1 broadcasts
    """

    site: Site
    layer: int
    positions: tuple[int, ...]
    entries: Bool[Tensor, "#variants #batch components"]
    values: Float[Tensor, "#variants #batch #positions #components #head_dim"]

    @property
    def variants(self) -> int:
        return max(self.entries.shape[0], self.values.shape[0])

    def select(self, variants: Tensor) -> Edit:
        """The same edit for some of its variants; index −1 stands for a variant that edits nothing.

        An edit of one variant serves any number.
        """
        chosen = variants.to(self.entries.device)
        edits_at_all = (chosen >= 0)[:, None, None]
        chosen = chosen.clamp(min=0)
        entries = (self.entries[chosen] if self.entries.shape[0] > 1 else self.entries) & edits_at_all
        values = self.values[chosen] if self.values.shape[0] > 1 else self.values
        return replace(self, entries=entries, values=values)

    def of_prompts(self, rows: NDArray[np.int64]) -> Edit:
        """The same edit for some prompts of its batch; an edit that does not tell prompts apart serves any."""
        entries, values = (x[:, rows] if x.shape[1] > 1 else x for x in (self.entries, self.values))
        return replace(self, entries=entries, values=values)

    def within(self, positions: range) -> Edit | None:
        """The same edit at those of its positions that lie in a range; None if there are none."""
        kept = [i for i, p in enumerate(self.positions) if p in positions]
        values = self.values[:, :, kept] if self.values.shape[2] > 1 else self.values
        return replace(self, positions=tuple(self.positions[i] for i in kept), values=values) if kept else None

    def apply(self, x: Tensor, batch: int, first: int) -> Tensor:
        """The edited input of a projection; x holds the positions from `first` on."""
        n_entries = self.entries.shape[-1]
        shaped = x.reshape(x.shape[0] // batch, batch, x.shape[1], n_entries, -1)
        at = [p - first for p in self.positions]
        mask, values = self.entries[:, :, None, :, None].to(x.device), self.values.to(x.device, x.dtype)
        edited = shaped.clone()
        edited[:, :, at] = torch.where(mask, values, shaped[:, :, at])
        return edited.reshape(x.shape)


def edit(
    model: Model,
    site: Site,
    layer: int,
    which: Tensor | Sequence[int] | None = None,
    *,
    positions: int | Sequence[int],
    values: Tensor | float = 0.0,
) -> Edit:
    """An Edit from plain arguments.

    which   indices of components, or a boolean tensor [(variants, (batch,)) components]; None means all of them
    values  a number, or a tensor [((variants,) batch,) positions, components] for neurons, with head_dim behind that
            for heads (sizes of 1 broadcast)
    """
    n, width = model.entries(site)
    entries = torch.zeros(n, dtype=torch.bool, device=model.device)
    if which is None:
        entries[:] = True
    elif isinstance(which, Tensor) and which.dtype == torch.bool:
        entries = which.to(model.device)
    else:
        entries[torch.as_tensor(which, device=model.device, dtype=torch.long)] = True
    while entries.dim() < 3:
        entries = entries.unsqueeze(0 if entries.dim() == 1 else 1)
    positions = (positions,) if isinstance(positions, int) else tuple(positions)
    value = torch.as_tensor(values, device=model.device, dtype=model.hf_model.dtype)
    if value.dim() and site is Site.NEURONS:
        value = value.unsqueeze(-1)
    value = value.reshape((1,) * (5 - value.dim()) + tuple(value.shape))
    if value.shape[-1] not in (1, width) or value.shape[-2] not in (1, n):
        raise ValueError(f"values of shape {tuple(value.shape)} do not fit {n} components of width {width}")
    return Edit(site, layer, positions, entries, value)


def zero_ablation(model: Model, neurons: Iterable[tuple[int, int]]) -> list[Edit]:
    """Edits, one a layer, that set these neurons, (layer, index), to zero at the last position."""
    sizes = model.sizes
    chosen: dict[int, list[int]] = {}
    for layer, neuron in neurons:
        if not (0 <= layer < sizes.layers and 0 <= neuron < sizes.neurons):
            raise UserError(
                f"There is no neuron L{layer}N{neuron}; the model has layers 0 to {sizes.layers - 1} with neurons 0 to "
                f"{sizes.neurons - 1} each."
            )
        chosen.setdefault(int(layer), []).append(int(neuron))
    last = model.positions.last
    return [edit(model, Site.NEURONS, layer, which, positions=last) for layer, which in chosen.items()]


@contextmanager
def editing(model: Model, edits: Sequence[Edit], batch: int, first: int = 0) -> Iterator[None]:
    """Apply edits to every forward pass inside; `first` is the position of the pass's first token."""

    def hook(change: Edit) -> Callable[..., Any]:
        return lambda module, args: (change.apply(args[0], batch, first), *args[1:])

    with ExitStack() as stack:
        for change in edits:
            handle = model.module(change.site, change.layer).register_forward_pre_hook(hook(change))
            stack.callback(handle.remove)
        yield


@contextmanager
def cutting(model: Model, layers: Sequence[int], into: int, sources: Sequence[int]) -> Iterator[None]:
    """In these layers, position `into` sees nothing of the positions `sources`; its attention goes to what is left.

    For passes over whole prompts.
    """

    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["hidden_states"]
        mask = kwargs["attention_mask"]
        if mask is None:  # which stands for plain causal attention
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()[None, None]
        if mask.dtype == torch.bool and model.attention_implementation != "sdpa":  # the others add the mask
            mask = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(~mask, _closed(x.dtype))
        mask = mask.clone()
        mask[:, :, into, list(sources)] = False if mask.dtype == torch.bool else _closed(mask.dtype)
        return args, {**kwargs, "attention_mask": mask}

    with ExitStack() as stack:
        for i in layers:
            handle = model.attention(i).register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _closed(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min


@dataclass
class Activations:
    """What was seen, by layer. `residual[l]` is the output of layer l; attention is [rows, heads, queries, keys]."""

    heads: dict[int, Float[Tensor, "rows positions heads head_dim"]] = field(default_factory=dict)
    neurons: dict[int, Float[Tensor, "rows positions neurons"]] = field(default_factory=dict)
    residual: dict[int, Float[Tensor, "rows positions width"]] = field(default_factory=dict)
    attention: dict[int, Float[Tensor, "rows heads queries keys"]] = field(default_factory=dict)


def _detached(x: Tensor) -> Tensor:
    return x.detach()


@contextmanager
def capturing(
    model: Model,
    *,
    heads: Sequence[int] = (),
    neurons: Sequence[int] = (),
    residual: Sequence[int] = (),
    attention: Sequence[int] = (),
    keep: Callable[[Tensor], Tensor] = _detached,
) -> Iterator[Activations]:
    """Watch the given layers at each site. Entered inside `editing`, it sees the edited values.

    `keep` says what to keep of each activation, right where it is seen: the last position, say, or a sum.
    """
    seen = Activations()
    n_heads, head_dim = model.entries(Site.HEADS)

    def at_heads(layer: int) -> Callable[..., Any]:
        def hook(module: Any, args: Any) -> Any:
            x = args[0].unflatten(-1, (n_heads, head_dim))
            seen.heads[layer] = keep(x)
            return x.flatten(-2), *args[1:]  # so that what was seen lies on the way to the output, for gradients

        return hook

    def at_neurons(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: Any) -> None:
            seen.neurons[layer] = keep(args[0])

        return hook

    def at_output(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            seen.residual[layer] = keep(layer_output(output))

        return hook

    def at_attention(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            seen.attention[layer] = output[1].detach()

        return hook

    with ExitStack() as stack:
        if attention:  # only the eager implementation computes the weights
            stack.enter_context(_eager_attention(model))
        handles = [
            *(model.module(Site.HEADS, i).register_forward_pre_hook(at_heads(i)) for i in heads),
            *(model.module(Site.NEURONS, i).register_forward_pre_hook(at_neurons(i)) for i in neurons),
            *(model.layers[i].register_forward_hook(at_output(i)) for i in residual),
            *(model.attention(i).register_forward_hook(at_attention(i)) for i in attention),
        ]
        for handle in handles:
            stack.callback(handle.remove)
        yield seen


def gradients(
    model: Model,
    ids: Tensor,
    measures: Callable[[Float[Tensor, "batch vocabulary"]], Float[Tensor, "*measures batch"]],
    *,
    heads: Sequence[int] = (),
    neurons: Sequence[int] = (),
    residual: Sequence[int] = (),
    embeddings: Float[Tensor, "batch length width"] | None = None,
) -> tuple[Activations, Activations]:
    """Activations, and the gradient of each prompt's own measures with respect to them (nothing is averaged): for each
    activation [batch, …] a slope [*measures, batch, …]. `embeddings` take the place of the tokens' own."""

    def start(module: Any, args: Any, output: Tensor) -> Tensor:
        # The weights are frozen, so without this nothing would be differentiable.
        return (output if embeddings is None else embeddings.to(output.device)).detach().requires_grad_()

    handle = model.hf_model.get_input_embeddings().register_forward_hook(start)
    try:
        with (
            torch.enable_grad(),
            fetched_again(model.hf_model),
            capturing(model, heads=heads, neurons=neurons, residual=residual, keep=lambda x: x) as seen,
        ):
            totals = measures(model.logits(ids)).sum(-1)
            each = totals.reshape(-1).unbind()
    finally:
        handle.remove()
    places = [(site, layer) for site in ("heads", "neurons", "residual") for layer in getattr(seen, site)]
    wanted = [getattr(seen, site)[layer] for site, layer in places]
    grads = [torch.autograd.grad(total, wanted, retain_graph=True) for total in each]
    slopes = Activations()
    for (site, layer), by_measure in zip(places, zip(*grads, strict=True), strict=True):
        getattr(slopes, site)[layer] = torch.stack(by_measure).reshape(*totals.shape, *by_measure[0].shape)
        getattr(seen, site)[layer] = getattr(seen, site)[layer].detach()
    return seen, slopes


def layer_output(output: Any) -> Tensor:
    """A decoder layer's hidden states; some families return them in a tuple."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def _eager_attention(model: Model) -> Iterator[None]:
    before = model.attention_implementation
    model.hf_model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.hf_model.set_attn_implementation(before)
