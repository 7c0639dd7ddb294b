"""What experiments run forward passes with: the fast engine by default, or the slow one that `verify` checks it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.models.engine import replay as replaying
from arithscope.models.engine import sweep as sweeping
from arithscope.models.engine.replay import Reduce
from arithscope.models.engine.sweep import Block, Means, last_position
from arithscope.models.hooks import Edit
from arithscope.models.model import Model
from arithscope.prompts import Prompts
from arithscope.utils.progress import Advance


class Engine(Protocol):
    """Edited forward passes over batches of prompts, and plain ones over very many prompts.

    A tape is whatever `record` returns; it is replayed by the engine that recorded it.

    Example:
        >>> tape = model.engine.record(model, model.encode(prompts), model.positions.last)
        >>> ablated = edit(model, Site.NEURONS, 12, [5], positions=model.positions.last)
        >>> logits = model.engine.replay(tape, [ablated], lambda unedited, edited: edited)
    """

    def record(
        self,
        model: Model,
        ids: Int[Tensor, "batch length"],
        first: int,
        neurons: Sequence[int] = (),
        edits: Sequence[Edit] = (),
    ) -> Any:
        """Run prompts once and return a tape from which edits at positions ≥ `first` can be replayed.

        Args:
            model: The model to run.
            ids: Tokens of the prompts.
            first: First position that replays may edit.
            neurons: Layers whose neurons `replay_neurons` is going to edit.
            edits: Edits of one variant each that stay in force in every replay.

        Raises:
            ValueError: If `first` lies outside the prompt.
        """

    def replay(self, tape: Any, edits: Sequence[Edit], reduce: Reduce, chunk: int | None = None) -> Tensor:
        """Run every variant of some edits, all in force together, and reduce the logits.

        Args:
            tape: What `record` returned.
            edits: Edits that agree in their number of variants; one variant serves all.
            reduce: Maps (unedited logits [batch, vocabulary], edited logits [variants, batch, vocabulary]) to
                [variants, batch, …], chunk by chunk.
            chunk: Number of variants in one pass; by default as many as fit in memory.

        Returns:
            The reduced logits of all variants, [variants, batch, …].

        Raises:
            ValueError: If the edits disagree in their number of variants, or edit a position before the tape's first.
        """

    def replay_neurons(
        self,
        tape: Any,
        layer: int,
        neurons: Int[Tensor, " variants"],
        values: Float[Tensor, "variants #batch"],
        reduce: Reduce,
        position: int | None = None,
        chunk: int | None = None,
    ) -> Tensor:
        """Set one neuron at a time to a value per prompt, at `position` (default: the last), and reduce the logits."""

    def sweep(
        self,
        model: Model,
        prompts: Prompts,
        *,
        heads: Sequence[int] = (),
        neurons: Sequence[int] = (),
        residual: Sequence[int] = (),
        keep: Callable[[Tensor], Tensor] = last_position,
        progress: Advance | None = None,
        rows: int | None = None,
    ) -> Iterator[Block]:
        """Run every prompt and yield, block by block, logits and activations.

        Args:
            model: The model to run.
            prompts: The prompts, in any number.
            heads: Layers whose heads are captured.
            neurons: Layers whose neurons are captured.
            residual: Layers whose output is captured.
            keep: What to keep of the activations [rows, positions from op2 on, …]; by default the last position.
            progress: Called with the number of prompts in each finished block.
            rows: Number of prompts in one pass; by default as many as fit in memory.
        """

    def sweep_neurons(
        self,
        model: Model,
        prompts: Prompts,
        chosen: Mapping[int, Int[Tensor, " chosen"]],
        progress: Advance | None = None,
        rows: int | None = None,
        keep: Callable[[Float[Tensor, "rows chosen"]], Tensor] = lambda x: x,
    ) -> Iterator[tuple[NDArray[np.int64], dict[int, Tensor]]]:
        """Run every prompt and yield row numbers with, by layer, the chosen neurons' activations at the last position."""

    def mean_activations(
        self,
        model: Model,
        prompts: Prompts,
        progress: Advance | None = None,
        rows: int | None = None,
        see: Callable[[NDArray[np.int64], Tensor], None] = lambda rows, logits: None,
    ) -> Means:
        """Mean over prompts of every head and neuron at every position; `see` gets each block's rows and logits."""


class Replay:
    """The fast engine: recomputes only what an edit can change, and each shared prefix once."""

    record = staticmethod(replaying.record)
    replay = staticmethod(replaying.replay)
    replay_neurons = staticmethod(replaying.replay_neurons)
    sweep = staticmethod(sweeping.sweep)
    sweep_neurons = staticmethod(sweeping.sweep_neurons)
    mean_activations = staticmethod(sweeping.mean_activations)


REPLAY: Engine = Replay()
