"""Options of the commands, in the panels of their help pages. Imports nothing heavy, so that --help is quick."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from arithscope.errors import UserError
from arithscope.utils.files import user_path

if TYPE_CHECKING:
    from arithscope.models.load import LoadOptions
    from arithscope.prompts import Operands as Ranges
    from arithscope.prompts import Template
    from arithscope.results.run import Run
    from arithscope.settings import Settings


def option(declared: str, text: str, *, panel: str | None = None, parser: Callable[[str], Any] | None = None) -> Any:
    """An option, declared as help pages show it: `--device DEVICE`, or `--raw` for a flag."""
    name, _, metavar = declared.partition(" ")  # an explicit name, since typer 0.27 would call the first one --DEVICE
    return typer.Option(name, metavar=metavar or None, help=text, rich_help_panel=panel, parser=parser)


def argument(metavar: str, text: str, parser: Callable[[str], Any] | None = None) -> Any:
    return typer.Argument(metavar=metavar, help=text, parser=parser)


study, samples, measures, machine, model_option = (
    partial(option, panel=panel) for panel in ("What to study", "Samples", "Measures", "Machine", "Model")
)
Device = Annotated[str, machine("--device DEVICE", "auto, cpu, cuda, cuda:N or mps.")]
DEVICE_MAP = "auto: spread the model over GPUs, CPU and disk; or a JSON file that maps modules to devices."
DeviceMap = Annotated[str | None, machine("--device-map MAP", DEVICE_MAP)]
AllowPickle = Annotated[bool, model_option("--allow-pickle", "Also load weights that are not safetensors.")]
TrustRemoteCode = Annotated[bool, model_option("--trust-remote-code", "Run code that comes with the model.")]
Operators = Annotated[str, study("--operators OPERATORS", "Operators to study: any of + - * /.")]
MODEL = "An embedded model (see `arithscope models`), a folder, a .gguf file, or a Hugging Face id (ID@REVISION)."
RUN_MODEL = "Where the run's model is now if it has moved, or a hub id to download."
ModelName = Annotated[str, argument("MODEL", MODEL)]
OUT = "Run folder; default: runs/MODEL, followed by the settings that are not the default ones, as in runs/MODEL-paper."
STAGES = "Run only these stages, and those they need: names separated by commas, as in circuit,classify."
CHECKPOINTS = "Also study training checkpoints: all, or names separated by commas."
PREFIX = r"Text before every prompt, such as few-shot examples; \n is a newline."
WORDS = "Words for operators, as in +=plus,-=minus; others keep their sign."
CHAT = "Write each prompt as the user's message in the tokenizer's chat template."
REPLY = r"With --chat: what the assistant says before the answer; \n is a newline."
PRESET = "quick, or paper: the paper's sample sizes and choices, and the study is repeated."
RANK = "Rank neurons by mean_abs, mean (the paper's) or mean+std of their effects; default: mean_abs, with --preset paper mean."
ANSWER_LAYERS = (
    "Study neurons of the layers found by cause (the last MLPs that the answer needs) or by probe (the paper's); default: "
    "cause, with --preset paper probe."
)
PLATEAU = (
    "What the fewest heads and neurons have to keep: faithfulness (the paper's), or accuracy as well; default: accuracy, with "
    "--preset paper faithfulness."
)
TOPK = "Top neurons per MLP (paper: 200); default: fewest that suffice."
EFFECT = "Effect that ranks components: probability (the paper's), log_ratio or logit."
BOTH_OPERANDS = "Also match heuristics about both operands at once."
CLUSTER = "Run on a Ray cluster: its address, or local; needs the extra `cluster`."
LAYERS = "Layers to measure, separated by commas; default: three, from the middle to the last."
NEURONS = (
    "How neuron effects are computed: exact; atp, ig or relp (attribution methods); or atp+exact: attribution patching for "
    "all neurons and exact patching for its top 10 %."
)
OPERANDS = "Operands of any number of tokens: 10-99, or 10-99,1-9 for op1 and op2. Each token of the answer is studied."
DIGITS = "Operands by number of digits: 2, or 2,1 for op1 and op2. Short for --operands 10-99, or 10-99,1-9."
Operands = Annotated[str | None, study("--operands RANGE", OPERANDS)]
Digits = Annotated[str | None, study("--digits N", DIGITS)]
RunPath = Annotated[Path, argument("RUN", "A run folder.", user_path)]
SampleSeed = Annotated[int, option("--seed N", "Seed of the sample that is recomputed.")]


@dataclass(frozen=True)
class ModelOptions:
    """How to load a model."""

    template: Annotated[str, study("--template TEXT", "Template of prompts.")] = "{op1}{operator}{op2}="
    prefix: Annotated[str, study("--prefix TEXT", PREFIX)] = ""
    operator_words: Annotated[str, study("--operator-words WORDS", WORDS)] = ""
    chat: Annotated[bool, study("--chat", CHAT)] = False
    reply: Annotated[str, study("--reply TEXT", REPLY)] = ""
    dtype: Annotated[str, model_option("--dtype DTYPE", "auto, float32, bfloat16 or float16.")] = "auto"
    quantize: Annotated[str | None, model_option("--quantize BITS", "4bit or 8bit; needs the extra `quant`.")] = None
    allow_pickle: AllowPickle = False
    trust_remote_code: TrustRemoteCode = False
    device: Device = "auto"
    device_map: DeviceMap = None

    def load_arguments(self) -> tuple[Template, LoadOptions]:
        from arithscope.models.load import LoadOptions
        from arithscope.prompts import Template, read_words

        options = vars(self).copy()
        text, prefix, reply = (options.pop(name).replace("\\n", "\n") for name in ("template", "prefix", "reply"))
        words, chat = read_words(options.pop("operator_words")), options.pop("chat")
        return Template(text, prefix, words, chat, reply), LoadOptions(**options)


@dataclass(frozen=True)
class RunOptions:
    """How to load the model of a finished run."""

    model: Annotated[str | None, model_option("--model MODEL", RUN_MODEL)] = None
    allow_pickle: AllowPickle = False
    trust_remote_code: TrustRemoteCode = False
    device: Device = "auto"
    device_map: DeviceMap = None

    def open_for(self, folder: Path, prompt: str) -> Run:
        """Open the run of a prompt, of the layouts that the folder holds; with one run, that."""
        from arithscope.results.run import runs_in

        runs = [self.open(path) for path in runs_in(folder)]
        for run in runs[:-1]:
            with suppress(UserError):
                run.prompt(prompt)
                return run
        return runs[-1]

    def open(self, folder: Path) -> Run:
        """Open a run. Its model is loaded when it is first needed."""
        from arithscope.models.load import LoadOptions
        from arithscope.results.run import Run

        options = vars(self).copy()
        return Run(folder, options.pop("model"), LoadOptions(**options))


@dataclass(frozen=True)
class SettingsOptions:
    """The fields of `Settings` that are options."""

    operators: Operators = "+-*/"
    max_operand: Annotated[int, study("--max-operand N", "Operands that are single tokens range from 0 to N.")] = 300
    operands: Operands = None
    digits: Digits = None
    preset: Annotated[str, samples("--preset NAME", PRESET)] = "quick"
    seed: Annotated[int, samples("--seed N", "Seed of all random choices.")] = 0
    effect: Annotated[str, measures("--effect NAME", EFFECT)] = "probability"
    neurons: Annotated[str, measures("--neurons METHOD", NEURONS)] = "exact"
    rank: Annotated[str | None, measures("--rank NAME", RANK)] = None
    answer_layers: Annotated[str | None, measures("--answer-layers NAME", ANSWER_LAYERS)] = None
    plateau: Annotated[str | None, measures("--plateau NAME", PLATEAU)] = None
    topk: Annotated[int | None, measures("--topk K", TOPK)] = None
    both_operands: Annotated[bool, measures("--both-operands", BOTH_OPERANDS)] = False

    def settings(self) -> Settings:
        from arithscope.settings import Settings

        values = vars(self).copy()
        values["operands"] = operands_named(values.pop("digits"), self.operands)
        return Settings(**values)


def operands_named(digits: str | None, operands: str | None) -> Ranges | None:
    """The operands named by --digits or --operands; None if neither is given."""
    from arithscope.prompts import operands_of_digits, parse_operands

    if digits is not None and operands is not None:
        raise UserError("--digits and --operands exclude each other; give one of them.")
    if digits is not None:
        return operands_of_digits(digits)
    return None if operands is None else parse_operands(operands)


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that turns the fields of a command's dataclass parameters into options."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(group := parameter.annotation):
            groups[parameter.name], hints = group, get_type_hints(group, include_extras=True)
            parameters += [
                parameter.replace(name=f.name, default=f.default, annotation=hints[f.name]) for f in fields(group)
            ]
        else:
            parameters.append(parameter)

    @wraps(command)
    def expanded(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        command(**values)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    expanded.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded
