"""Load a model from an embedded name, a folder, a GGUF file or a hub id, each optionally with `@` and a revision.

A loaded model can be split into a ModelSpec and its weights as plain bytes, from which other processes rebuild it. If these
bytes lie in shared memory, CPU models use them without a copy.
"""

import copy
import hashlib
import importlib.util
import io
import logging
import re
import tempfile
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging as transformers_logging

from arithscope.errors import UserError
from arithscope.models.engine.replay import check_replay
from arithscope.models.model import Identity, Model, architecture_of
from arithscope.models.offload import DISK, DeviceMap, check_device_map, read_device_map, weight_of
from arithscope.models.sources import ModelSource, embedded_names, find_model
from arithscope.models.untrained import check_config, empty_model
from arithscope.prompts import Stratum, Template
from arithscope.utils.files import checksum, user_path
from arithscope.utils.out_of_memory import explain_out_of_memory, is_out_of_memory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUANTIZATIONS = ("4bit", "8bit")
LARGEST_TOKEN = 1 << 24  # an id this large would cost gigabytes: the tokenizers library lists all unused smaller ones
SMALL = 2_000_000_000  # parameters below which float32 is the default


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded.

    Attributes:
        device: auto, cpu, cuda, cuda:N or mps.
        dtype: float32, bfloat16 or float16; auto is float32 below 2 billion parameters, otherwise as stored.
        device_map: "auto" spreads a model over GPUs, CPU and disk; or a device per module, {"model.layers.0": "disk", …},
            or a JSON file with such a mapping.
        quantize: 4bit or 8bit.
        allow_pickle: Also load pickled weights, which can run code.
        trust_remote_code: Run code that comes with the model.
        local_files_only: Contact no model hub: a hub model must have been downloaded before.
    """

    device: str = "auto"
    dtype: str = "auto"
    device_map: str | DeviceMap | None = None
    quantize: str | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False
    local_files_only: bool = False


def load(model: str, template: Template | None = None, options: LoadOptions | None = None) -> Model:
    """Load a model and check that its family is supported and that it replays exactly.

    Args:
        model: Name of an embedded model, folder, GGUF file or hub id; a checkpoint or revision may follow after `@`.
        template: How prompts are written; by default "{op1}{operator}{op2}=".
        options: Device, precision and so on.

    Returns:
        The model, frozen and in evaluation mode.

    Raises:
        UserError: If it cannot be found, loaded or trusted.

    Example:
        >>> model = load("tiny-pythia@step-01500", options=LoadOptions(device="cpu"))
    """
    options = options or LoadOptions()
    with explain_out_of_memory(f"loading {model}"):
        device = check_options(options)
        silence_libraries()
        source = find_model(model, options.local_files_only)
        hf_model, tokenizer = _read_files(source, device, options)
        revision = (source.revision or "") if source.local else source.folder().name
        hashes = _weight_hash(source, hf_model), _tokenizer_hash(tokenizer)
        full_name = str(user_path(model).resolve()) if user_path(model).exists() else model
        identity = Identity(source.name, revision, *hashes, source=full_name)
        return _attempt(source, "model", checked_model, hf_model, tokenizer, identity, template)


def check_options(options: LoadOptions) -> torch.device:
    """The device to load on. Raises UserError if an option is invalid or needs an unavailable device."""
    device = pick_device(options.device)
    if options.dtype not in ("auto", *DTYPES):
        raise UserError(f"There is no dtype {options.dtype!r}; choose from auto, {', '.join(DTYPES)}.")
    if options.quantize not in (None, *QUANTIZATIONS):
        raise UserError(f"There is no quantisation {options.quantize!r}; choose {' or '.join(QUANTIZATIONS)}.")
    if options.device_map is not None:
        read_device_map(options.device_map)
    return device


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is a CUDA GPU, or the CPU if there is none. Raises UserError if it is unavailable."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch("cpu|mps|cuda(:[0-9]{1,4})?", name):
        raise UserError(f"There is no device {name[:40]!r}; use auto, cpu, cuda, cuda:N or mps.")
    device, visible = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= visible:
        raise UserError(f"The device {name} is not available (visible CUDA GPUs: {visible}); use --device cpu.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("The device mps is not available on this machine; use --device cpu.")
    return device


def silence_libraries() -> None:
    """Turn off the libraries' warnings and progress bars; problems are raised as UserError."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    levels = {"huggingface_hub": logging.CRITICAL, "accelerate": logging.ERROR, "bitsandbytes": logging.ERROR}
    for library, level in levels.items():
        logging.getLogger(library).setLevel(level)


def _source_arguments(source: ModelSource, options: LoadOptions) -> dict[str, Any]:
    """Arguments of `from_pretrained` that say where the files are."""
    revision, local = (None, True) if source.local else (source.revision, None)
    given = dict(revision=revision, local_files_only=local, gguf_file=source.gguf)
    return {"trust_remote_code": options.trust_remote_code, **{k: v for k, v in given.items() if v is not None}}


def _read_files(source: ModelSource, device: torch.device, options: LoadOptions) -> tuple[Any, Any]:
    """The Hugging Face model and its tokenizer."""

    def read() -> tuple[Any, Any]:
        arguments = _source_arguments(source, options)
        config = _attempt(source, "configuration", AutoConfig.from_pretrained, source.location, **arguments)
        hf_model = _load_weights(source, config, device, options)
        return hf_model, _attempt(source, "tokenizer", AutoTokenizer.from_pretrained, source.location, **arguments)

    if source.gguf is None:
        return read()
    from arithscope.models.gguf_file import parsed_once, without_bos  # here, as the package gguf may not be installed

    file = source.folder() / source.gguf

    def read_gguf() -> tuple[Any, Any]:
        hf_model, tokenizer = read()
        if without_bos(file):
            tokenizer.bos_token = None
        return hf_model, tokenizer

    return parsed_once(file, read_gguf)


def _attempt(source: ModelSource, what: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the library, and turn whatever it raises on bad files into a UserError."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if isinstance(error, UserError) or is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason if len(reason) <= 300 else reason[:299] + "…"
        if source.local:
            raise UserError(f"The {what} in {source.location} cannot be loaded: {reason}") from error
        unknown = f"{source.location!r} is neither an embedded model ({', '.join(embedded_names())}) nor a folder here"
        raise UserError(f"{unknown}, and cannot be loaded from the model hub: {reason}") from error


def _load_weights(source: ModelSource, config: Any, device: torch.device, options: LoadOptions) -> Any:
    attention = "eager" if architecture_of(config).eager_only else "sdpa"
    if source.local and not source.weight_files() and not options.allow_pickle:
        why = "pickled weights can run code, so they are loaded only with --allow-pickle"
        raise UserError(f"The folder {source.location} holds no .safetensors weights; {why}.")
    _attempt(source, "weights", source.check_index)
    parameters = _attempt(source, "configuration", check_config, config, source.max_numbers())
    stored = getattr(config, "dtype", None)
    half = stored if stored in (torch.bfloat16, torch.float16) else torch.bfloat16
    dtype = DTYPES.get(options.dtype) or (torch.float32 if parameters < SMALL else half)
    arguments = _source_arguments(source, options) | dict(config=config, dtype=dtype, output_loading_info=True)
    arguments["attn_implementation"] = attention
    if source.gguf is None:
        arguments["use_safetensors"] = None if options.allow_pickle else True
    if options.device_map is not None:
        arguments["device_map"] = device_map = read_device_map(options.device_map)
        if not isinstance(device_map, str):
            check_device_map(device_map, empty_model(config))
            if source.gguf is not None and DISK in device_map.values():
                raise UserError("No part of a GGUF file can be left on disk; put it on cpu in the device map.")
    if options.quantize is not None:
        if importlib.util.find_spec("bitsandbytes") is None:
            raise UserError("Quantisation needs the package bitsandbytes; run: pip install 'arithscope[quant]'.")
        bits = BitsAndBytesConfig(**{f"load_in_{options.quantize}": True})
        arguments = {"device_map": device} | arguments | {"quantization_config": bits}
    # Offloaded weights are read from their safetensors files as needed; pickled ones are first copied to a temporary folder.
    folder = None
    if options.allow_pickle and options.device_map is not None:
        folder = tempfile.TemporaryDirectory(prefix="arithscope-")
        arguments["offload_folder"] = folder.name
    with redirect_stderr(io.StringIO()) if source.gguf else nullcontext():  # a progress bar that cannot be turned off
        hf_model, info = _attempt(source, "weights", AutoModelForCausalLM.from_pretrained, source.location, **arguments)
    if folder is not None:
        weakref.finalize(hf_model, folder.cleanup)
    _check_weights(hf_model, info, source)
    if options.device_map is None and options.quantize is None:
        hf_model = hf_model.to(device)
    return hf_model


def _check_weights(hf_model: Any, info: dict[str, Any], source: ModelSource) -> None:
    """Refuse weights that are missing (transformers would initialise them at random), of the wrong shape or not finite."""
    if absent := sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"]):
        others = "is" if len(absent) == 1 else f"and {len(absent) - 1} more are"
        raise UserError(f"The weights of {source.name} are incomplete: {absent[0]} {others} missing.")
    if all(p.is_meta for p in hf_model.parameters()) and not any(hasattr(m, "_hf_hook") for m in hf_model.modules()):
        advice = "put a part of it on cpu in the device map, or install transformers 5.15 or newer"
        raise UserError(f"This version of transformers cannot leave all of a model on disk; {advice}.")
    sizes = {torch.nn.Linear: ("out_features", "in_features"), torch.nn.Embedding: ("num_embeddings", "embedding_dim")}
    for name, module in hf_model.named_modules():  # transformers does not check the shapes in a GGUF file
        shape = tuple(getattr(module, size) for size in sizes.get(type(module), ()))
        if shape and module.weight.shape != shape:
            stored = f"{name} is {tuple(module.weight.shape)}, but its configuration says {shape}"
            raise UserError(f"The weights of {source.name} are damaged: {stored}.")
    for name, weight in hf_model.named_parameters():
        checkable = weight.dtype in DTYPES.values() and weight.device.type != "meta" and weight.numel()
        if checkable and not torch.stack(torch.aminmax(weight.detach())).isfinite().all():
            raise UserError(f"The weights of {source.name} are damaged: {name} holds numbers that are not finite.")


def _weight_hash(source: ModelSource, hf_model: Any) -> str:
    digest = hashlib.sha256()
    if files := source.weight_files():
        with ThreadPoolExecutor(4) as pool:
            digest.update("".join(pool.map(checksum, files)).encode())
        return digest.hexdigest()
    for name, tensor in sorted(hf_model.state_dict().items()):  # without safetensors files
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.device.type == "meta":
            module, _, parameter = name.rpartition(".")
            tensor = weight_of(hf_model.get_submodule(module), parameter)
        digest.update(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tokenizer_hash(tokenizer: Any) -> str:
    vocabulary = tokenizer.get_vocab()
    if (largest := max(vocabulary.values(), default=0)) > LARGEST_TOKEN:
        raise UserError(f"The tokenizer has a token with the impossible id {largest}; get its files again.")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else repr(sorted(vocabulary.items()))
    return hashlib.sha256(f"{text} bos={tokenizer.bos_token_id}".encode()).hexdigest()


def checked_model(hf_model: Any, tokenizer: Any, identity: Identity, template: Template | None) -> Model:
    """Build a model. Raises UserError if its replays are not exact."""
    model = Model(hf_model, tokenizer, identity, template)
    check_replay(model, model.encode(model.encoder.examples()))
    return model


@dataclass(frozen=True, eq=False)
class Weights:
    """Every parameter and buffer, persistent or not. Tied ones are stored once: several names share an index."""

    stored: list[tuple[NDArray[np.uint8], torch.dtype, tuple[int, ...]]]  # bytes, type and shape
    indices: dict[str, int]  # name → index into stored


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """Everything about a model except its weights."""

    config: Any
    tokenizer: Any
    identity: Identity
    template: Template
    dtype: torch.dtype
    attention: str
    quantized: bool
    stratum: Stratum | None = None  # that it is asked for, if its numbers take several tokens

    def empty(self) -> Model:
        """A model without weights: it has sizes, tokenizer and identity, but cannot be run."""
        return self._asked(Model(self._empty_hf_model(), self.tokenizer, self.identity, self.template))

    def filled(self, weights: Weights, device: torch.device) -> Model:
        """The model with these weights; on the CPU it shares their memory."""
        hf_model = self._empty_hf_model()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # shared memory is read-only
            tensors = [torch.from_numpy(x).view(kind).view(shape).to(device) for x, kind, shape in weights.stored]
        parameters = [nn.Parameter(tensor, requires_grad=False) for tensor in tensors]
        for name, index in weights.indices.items():
            path, _, leaf = name.rpartition(".")
            owner = hf_model.get_submodule(path)
            setattr(owner, leaf, parameters[index] if leaf in owner._parameters else tensors[index])
        return self._asked(checked_model(hf_model, self.tokenizer, self.identity, self.template))

    def _asked(self, model: Model) -> Model:
        return model if self.stratum is None else model.at(self.stratum)

    def _empty_hf_model(self) -> Any:
        config = copy.deepcopy(self.config)
        if hasattr(config, "quantization_config"):
            del config.quantization_config  # an empty model is not quantised
        hf_model = empty_model(config, dtype=self.dtype, attn_implementation=self.attention)
        if self.quantized:
            hf_model.config.quantization_config, hf_model.is_quantized = self.config.quantization_config, True
        return hf_model


def model_spec(model: Model) -> ModelSpec:
    """The spec from which another process can rebuild a model."""
    hf_model, template, stratum = model.hf_model, model.encoder.template, model.encoder.stratum
    options = hf_model.dtype, model.attention_implementation, bool(model.quantization)
    return ModelSpec(hf_model.config, model.tokenizer, model.identity, template, *options, stratum)


def weights_of(model: Model) -> Weights:
    """A model's weights: views if they are on the CPU, otherwise copies."""
    hf_model = model.hf_model
    named = [*hf_model.named_parameters(remove_duplicate=False), *hf_model.named_buffers(remove_duplicate=False)]
    if model.quantization or any(tensor.device.type == "meta" for _, tensor in named):
        problem = "are quantised or offloaded and cannot be sent to other processes"
        advice = "give the model's name, so that each process loads it itself"
        raise UserError(f"The weights of {model.identity.name} {problem}; {advice}.")
    distinct: dict[int, Tensor] = {id(tensor): tensor for _, tensor in named}
    index = {key: i for i, key in enumerate(distinct)}
    arrays = (x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() for x in distinct.values())
    stored = [(array, x.dtype, tuple(x.shape)) for array, x in zip(arrays, distinct.values(), strict=True)]
    return Weights(stored, {name: index[id(tensor)] for name, tensor in named})
