"""The engine that a model's experiments run on: fast by default; `verify` compares it with the slow one."""

from arithscope.models.engine import replay as replaying
from arithscope.models.engine import sweep as sweeping


class Engine:
    """Runs edited forward passes, and plain ones over very many prompts.

    This is the fast engine: it recomputes only what an edit can change, and each shared prefix once. Its methods are
    documented in `replay` and `sweep`. `FullPass` has the same methods and takes no shortcut.

    Example:
        >>> tape = model.engine.record(model, model.encode(prompts), model.positions.final)
        >>> ablated = edit(model, Site.NEURONS, 12, [5], positions=model.positions.final)
        >>> logits = model.engine.replay(tape, [ablated], lambda unedited, edited: edited)
    """

    record = staticmethod(replaying.record)
    replay = staticmethod(replaying.replay)
    replay_neurons = staticmethod(replaying.replay_neurons)
    replay_residual = staticmethod(replaying.replay_residual)
    sweep = staticmethod(sweeping.sweep)
    sweep_neurons = staticmethod(sweeping.sweep_neurons)
    mean_activations = staticmethod(sweeping.mean_activations)


REPLAY = Engine()
