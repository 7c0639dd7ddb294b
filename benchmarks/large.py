"""Studies of models of real size on one GPU: a model's exact shape with random weights, so that nothing is downloaded.

The real stages run, by `runner.run_stages`, into a run folder. Each is timed, with its peak memory, and compared with its
floor: the operations that it cannot do without, at the speed of plain products on the same GPU. A random model is never right,
so every prompt counts as correct; it has no circuit and no answer layer, so the circuit is the first 20 heads, the first answer
layer is the middle one, and 200 neurons of each MLP are kept, as in the paper. Times do not depend on the answers.

    python -m benchmarks.large llama-3-8b [--preset paper] [--operators +] [--stages neurons] [--hold 24] [--record NAME]

With fewer than four operators, a column says what the stage would take with all four: four times as long as with one, except
for `means`, `accuracy` and `probe`, which do not depend on the number of operators. `--probe` sets the number of prompts for
the probes, `--hold` the GB of GPU memory to use, `--layers` the number of layers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from arithscope.cli.bench import PROMPTS, Task
from arithscope.cli.doctor import check_soundness
from arithscope.experiments.circuit import head_counts
from arithscope.experiments.common.samples import TRAINING_SHARE
from arithscope.experiments.common.stage import Context, Stage
from arithscope.experiments.mlp0 import SHARES as FIRST_MLP_SHARES
from arithscope.experiments.probe import BATCH, training_steps
from arithscope.experiments.topk import neuron_counts
from arithscope.models.memory import flops_per_position
from arithscope.models.model import Identity, Model
from arithscope.models.untrained import number_tokenizer
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunWriter
from arithscope.prompts import OPERATORS, legal_prompts
from arithscope.settings import EXACT, PRESETS, Settings
from arithscope.utils.printing import PlainConsole
from arithscope.utils.progress import console_progress
from benchmarks.record import Table, record, record_option

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3-8b": dict(
        family="llama", hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=14336, vocab_size=128256, numbers=1000,
    ),
    "llama-3-70b": dict(
        family="llama", hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        intermediate_size=28672, vocab_size=128256, numbers=1000,
    ),
    "pythia-6.9b": dict(
        family="gpt_neox", hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=16384,
        vocab_size=50432, numbers=531,
    ),
    "gpt-j-6b": dict(family="gptj", n_embd=4096, n_layer=28, n_head=16, rotary_dim=64, vocab_size=50400, numbers=521),
}  # fmt: skip
CIRCUIT_HEADS = 20  # as many as the paper's largest circuit has
TOP_NEURONS = 200
SAMPLE = 16  # neurons that are patched one at a time, to compare with


def random_model(shape: str, layers: int | None, device: str) -> Model:
    """The shape with random weights, in bfloat16 on a GPU."""
    config = dict(SHAPES[shape])
    family, tokenizer = config.pop("family"), number_tokenizer(config.pop("numbers"))
    if layers is not None:
        config["n_layer" if "n_layer" in config else "num_hidden_layers"] = layers
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    filled = AutoConfig.for_model(family, max_position_embeddings=64, tie_word_embeddings=False, **special, **config)
    torch.manual_seed(0)
    with torch.device(device):
        hf_model = AutoModelForCausalLM.from_config(filled, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    return Model(hf_model, tokenizer, Identity(shape, "", "random weights", "numbers"))


def stages_for_random_weights(model: Model) -> list[Stage]:
    """The stages, with results that a random model cannot give replaced."""
    layers = model.sizes.layers
    changes: dict[str, Callable[[Any], Any]] = {
        "accuracy": lambda found: replace(found, prompts=found.prompts.assign(correct=True)),
        "probe": lambda found: replace(found, first_answer_layer=layers // 2),
        "answer_layers": lambda found: replace(found, first_layer=dict.fromkeys(found.first_layer, layers // 2)),
        "circuit": lambda found: replace(
            found, heads=found.heads.assign(in_circuit=found.heads["rank"] < CIRCUIT_HEADS)
        ),
    }

    def changed(stage: Stage) -> Stage:
        if stage.name not in changes:
            return stage

        def compute(ctx: Context) -> Any:
            return changes[stage.name](stage.compute(ctx))

        return replace(stage, compute=compute)

    return [changed(stage) for stage in all_stages()]


def seconds_of(function: Callable[[], object], repeats: int = 1) -> float:
    _wait()
    started = time.perf_counter()
    for _ in range(repeats):
        function()
    _wait()
    return (time.perf_counter() - started) / repeats


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def product_speed(device: str) -> float:
    """Operations a second that plain products reach, in bfloat16 on a GPU."""
    n = 8192 if device == "cuda" else 1024
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        a @ b
    return 2 * n**3 / seconds_of(lambda: a @ b, 10)


def floors(model: Model, settings: Settings, speed: float) -> dict[str, float]:
    """The shortest possible times of the larger stages, in seconds: products of activations with weights."""
    s, sizes, operators = model.sizes, settings.sizes, len(settings.operators)
    head = flops_per_position(model, s.layers)  # the unembedding alone
    layer = (flops_per_position(model) - head) / s.layers
    prompts = (settings.max_operand + 1) ** 2
    tails = [model.encoder.length - at for at in model.positions.named().values()]
    later, length = s.layers - s.layers // 2, tails[0]
    found = {
        "means": len(model.encoder.operators) * prompts * (tails[2] * s.layers * layer + head),
        "localize": operators
        * sizes.discovery
        * (s.heads + 1)
        * (sum(tails) * layer * s.layers * (s.layers + 1) / 2 + len(tails) * s.layers * head),
        "circuit": operators
        * sizes.evaluation
        * len(head_counts(s.layers * s.heads))
        * (1 + sizes.draws)
        * (length * s.layers * layer + head),
        "mlp0": operators
        * (
            s.neurons * sizes.first_mlp * (sum(tails[:3]) * (s.layers - 1) * layer + 3 * head)
            + sizes.evaluation * len(FIRST_MLP_SHARES) * (1 + sizes.draws) * (length * s.layers * layer + head)
        ),
        "neurons": operators
        * s.neurons
        * min(sizes.neurons, sizes.discovery)
        * (later * (later - 1) / 2 * layer + later * head),
        "topk": operators
        * sizes.evaluation
        * len(neuron_counts(s.neurons))
        * (1 + sizes.draws)
        * (later * layer + head),
        "patterns": operators * prompts * tails[2] * s.layers * layer,
    }
    taken = training_steps(int(TRAINING_SHARE * probe_prompts(model, settings)))
    found["probe"] = len(tails) * s.layers * taken * 2 * (2 * BATCH * s.width * model.limit)  # logits and gradients
    if settings.neurons != EXACT:
        del found["neurons"]
    return {name: operations / speed for name, operations in found.items()}


def probe_prompts(model: Model, settings: Settings) -> int:
    every = len(legal_prompts(settings.operators, settings.max_operand, model.limit))
    return min(every, settings.sizes.probe)


def with_all_operators(settings: Settings, stage: str, seconds: float) -> float:
    """What a stage would take with all operators; sweeps and probes do not depend on how many there are."""
    if stage in ("means", "accuracy", "probe"):
        return seconds
    return seconds * len(OPERATORS) / len(settings.operators)


def study_table(
    model: Model, settings: Settings, stages: Sequence[str] | None, speed: float, taken: int
) -> tuple[Table, list[float]]:
    """Run the stages into a temporary folder; returns a row for each, and its seconds with all operators."""
    rows: list[list[Any]] = []
    every: list[float] = []
    least = floors(model, settings, speed)
    lines = console_progress(PlainConsole(stderr=True))

    def after(folder: RunWriter) -> None:
        done = [name for name, entry in folder.manifest["stages"].items() if entry["status"] == "done"]
        for name in done[len(rows) :]:
            seconds = folder.manifest["stages"][name]["seconds"]
            peak = (torch.cuda.max_memory_allocated() - taken) / 1e9 if torch.cuda.is_available() else None
            scaled = with_all_operators(settings, name, seconds)
            floor = least.get(name)
            rows.append([name, seconds, scaled, peak, floor, seconds / floor if floor else None])
            every.append(scaled)
            print(rows[-1], flush=True)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    with tempfile.TemporaryDirectory() as folder:
        known = stages_for_random_weights(model)
        run_stages(model, settings, Path(folder) / "run", stages, lines, after, known=known)
    return Table(["stage", "seconds", "all operators", "most GB", "floor, seconds", "times the floor"], rows), every


@contextmanager
def held(gigabytes: float | None) -> Iterator[int]:
    """Leave only this much of the GPU's memory; yields the bytes taken away."""
    if gigabytes is None:
        yield 0
        return
    taken = torch.cuda.mem_get_info()[1] - int(gigabytes * 1e9)
    taken -= torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    filler = torch.empty(taken, dtype=torch.uint8, device="cuda")
    yield taken
    del filler


def replayed(task: Task, neurons: int) -> Tensor:
    """The exact effects of a layer's first neurons."""
    return task.replayed(torch.arange(neurons), task.values[:neurons], task.effect)


def one_at_a_time(task: Task, neurons: int) -> Tensor:
    """The same by a full pass over the prompts for each neuron."""
    each = torch.arange(neurons, device=task.model.device).split(1)
    return torch.cat([task.batched(neuron, task.values[neuron], task.effect) for neuron in each])


def single_neuron_table(model: Model, depth: int, every: float | None) -> Table:
    """Replay beside one neuron at a time. `depth` is the shape's true number of layers; `every` the seconds that exact effects
    of all neurons of its later half took, for all operators."""
    s = model.sizes
    low, high = s.layers // 2, max(s.layers // 2 + 1, s.layers - 4)
    some = min(1000, s.neurons)
    tasks = {layer: Task(model, PROMPTS, layer) for layer in (low, high)}
    for task in tasks.values():  # warm-up
        replayed(task, some)
    replay = {layer: seconds_of(partial(replayed, task, some), 3) for layer, task in tasks.items()}
    one_at_a_time(tasks[low], 2)
    alone = seconds_of(lambda: one_at_a_time(tasks[low], SAMPLE)) / SAMPLE
    flops = (high - low) * (flops_per_position(model, 0) - flops_per_position(model, 1)) * some * PROMPTS
    a_layer = (replay[low] - replay[high]) / (high - low)  # seconds for each layer above
    top = replay[high] - (s.layers - 1 - high) * a_layer  # of the last layer, above which there is only the unembedding
    later, patches = depth - depth // 2, s.neurons / some * len(OPERATORS)
    extrapolated = patches * (later * top + later * (later - 1) / 2 * a_layer)
    one_by_one = later * s.neurons * len(OPERATORS) * alone
    rows: list[list[Any]] = [
        ["in the replayed layers, TFLOP/s", flops / (replay[low] - replay[high]) / 1e12],
        *([f"replay, layer {layer}, microseconds a neuron and prompt", 1e6 * seconds / some / PROMPTS]
          for layer, seconds in replay.items()),
        *([f"replay, layer {layer}, seconds for all its neurons, {PROMPTS} prompts, all operators", patches * seconds]
          for layer, seconds in replay.items()),
        [f"one neuron at a time, a full pass over {PROMPTS} prompts, milliseconds a neuron", 1e3 * alone],
        [f"all neurons of the later {later} of {depth} layers so, minutes (extrapolated)", one_by_one / 60],
        ["the same by replay, minutes (extrapolated)", extrapolated / 60],
    ]  # fmt: skip
    if every is not None:
        rows += [
            ["the same by the stage `neurons`, minutes (measured)", every / 60],
            ["one at a time ÷ stage", one_by_one / every],
        ]
    return Table(["single neurons", "value"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("--preset", default="paper", choices=list(PRESETS))
    parser.add_argument("--operators", default="+-*/")
    parser.add_argument("--max-operand", type=int, default=300)
    parser.add_argument("--stages", help="only these and those they need, separated by commas")
    parser.add_argument("--neurons", default="exact", help="as in `arithscope run`")
    parser.add_argument("--probe", type=int, help="prompts for probes")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--hold", type=float, metavar="GB")
    record_option(parser)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.probe is not None:
        PRESETS[arguments.preset] = replace(PRESETS[arguments.preset], probe=arguments.probe)
    settings = Settings(
        operators=tuple(arguments.operators),
        max_operand=arguments.max_operand,
        preset=arguments.preset,
        topk=TOP_NEURONS,
        neurons=arguments.neurons,
    )
    speed = product_speed(device)
    print(f"products {speed / 1e12:.0f} TFLOP/s", flush=True)
    with held(arguments.hold) as taken:
        model = random_model(arguments.shape, arguments.layers, device)
        print(model, flush=True)
        for line in check_soundness(model, settings):
            print(line, flush=True)
        names = None if arguments.stages is None else arguments.stages.split(",")
        stages, every = study_table(model, settings, names, speed, taken)
        by_name = dict(zip([row[0] for row in stages.rows], every, strict=True))
        depth = SHAPES[arguments.shape].get("num_hidden_layers") or SHAPES[arguments.shape]["n_layer"]
        exact = by_name.get("neurons") if settings.neurons == EXACT and model.sizes.layers == depth else None
        tables = {"stages": stages, "single-neurons": single_neuron_table(model, depth, exact)}
    stages.rows.append(["all together", sum(row[1] for row in stages.rows), sum(every), None, None, None])
    for table in tables.values():
        print(table.columns)
        for row in table.rows:
            print(row, flush=True)
    if arguments.record:
        record(arguments.record, tables, [str(model), f"plain products reach {speed / 1e12:.0f} TFLOP/s"])


if __name__ == "__main__":
    main()
