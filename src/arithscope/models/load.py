"""Loading a subject: an embedded name, a folder, a GGUF file or a hub id, each optionally with a revision behind `@`."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import logging
import re
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import logging as hub_logging
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from arithscope.errors import UserError
from arithscope.models.config_check import check_sizes
from arithscope.models.engine.replay import check_replay
from arithscope.models.families import FAMILIES
from arithscope.models.model import Identity, Model, unknown_family
from arithscope.models.offload import DISK, DeviceMap, check_device_map, read_device_map, weight_of
from arithscope.models.placement import ModelSource, find
from arithscope.models.sources import embedded_names
from arithscope.prompts import Template
from arithscope.utils.out_of_memory import explain_out_of_memory, is_out_of_memory
from arithscope.utils.paths import user_path

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUANTIZATIONS = ("4bit", "8bit")
SMALL = 2_000_000_000  # parameters up to which float32 is the default


@dataclass(frozen=True)
class LoadOptions:
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: str = "auto"  # auto: float32 up to two thousand million parameters, beyond that as stored
    # "auto" spreads a model over GPUs, CPU and disk; or a place for each part, such as {"model.layers.0": "disk", …}
    device_map: str | DeviceMap | None = None
    quantize: str | None = None  # 4bit or 8bit
    allow_pickle: bool = False  # weights that are not safetensors can run code when loaded
    trust_remote_code: bool = False  # models that bring their own code run it


def load(model: str, template: Template | None = None, options: LoadOptions | None = None) -> Model:
    """Load a subject, check that its family is supported and that it replays exactly."""
    with explain_out_of_memory(f"loading {model}"):
        return _load(model, template, options or LoadOptions())


def _load(model: str, template: Template | None, options: LoadOptions) -> Model:
    device = check_options(options)
    _quiet()
    place = find(model)
    config = _configuration(place, options)
    hf_model = _model(place, config, device, options)
    tokenizer = _attempt(place, "tokenizer", AutoTokenizer.from_pretrained, place.source, **_arguments(place, options))
    revision = place.revision or "" if place.local else place.folder().name
    path = user_path(model)
    source = str(path.resolve()) if path.exists() else model
    identity = Identity(place.name, revision, _weight_hash(place, hf_model), _tokenizer_hash(tokenizer), source)
    return _attempt(place, "model", _checked, hf_model, tokenizer, identity, template)


def check_options(options: LoadOptions) -> torch.device:
    """Refuse what no subject can be loaded with; the device that is meant."""
    device = pick_device(options.device)
    if options.dtype not in ("auto", *DTYPES):
        raise UserError(f"There is no dtype {options.dtype!r}; choose from auto, {', '.join(DTYPES)}.")
    if options.quantize not in (None, *QUANTIZATIONS):
        raise UserError(f"There is no quantisation {options.quantize!r}; choose {' or '.join(QUANTIZATIONS)}.")
    if options.device_map is not None:
        read_device_map(options.device_map)
    return device


def _checked(hf_model: Any, tokenizer: Any, identity: Identity, template: Template | None) -> Model:
    loaded = Model(hf_model, tokenizer, identity, template)
    check_replay(loaded, loaded.encode(loaded.encoder.examples()))
    return loaded


def _quiet() -> None:
    """What goes wrong is said by us, once; the libraries' own warnings and bars are not shown."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    for library in ("accelerate", "bitsandbytes"):
        logging.getLogger(library).setLevel(logging.ERROR)


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch("cpu|mps|cuda(:[0-9]{1,4})?", name):
        raise UserError(f"There is no device {name[:40]!r}; use auto, cpu, cuda, cuda:N or mps.")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UserError(
            f"The device {name} was asked for, but {found or 'no'} CUDA GPUs are visible; use --device cpu."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("The device mps was asked for, but this machine has none; use --device cpu.")
    return device


def _arguments(place: ModelSource, options: LoadOptions) -> dict[str, Any]:
    """What the library is told of where the files are."""
    found: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
    if place.local:
        found["local_files_only"] = True
    elif place.revision is not None:
        found["revision"] = place.revision
    if place.gguf is not None:
        found["gguf_file"] = place.gguf
    return found


def _attempt(place: ModelSource, what: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the library, and turn whatever it raises on bad files into one sentence."""
    try:
        return function(*args, **kwargs)
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        if not place.local:
            raise UserError(
                f"{place.source!r} is no embedded subject ({', '.join(embedded_names())}), no folder here, and could not "
                f"be had from the model hub: {_shortened(reason)}"
            ) from error
        raise UserError(f"The {what} in {place.source} cannot be loaded: {_shortened(reason)}") from error


def _shortened(reason: str, most: int = 300) -> str:
    return reason if len(reason) <= most else reason[: most - 1] + "…"


def _configuration(place: ModelSource, options: LoadOptions) -> Any:
    arguments = _arguments(place, options)
    config = _attempt(place, "configuration", AutoConfig.from_pretrained, place.source, **arguments)
    family = config.get_text_config().model_type
    if family not in FAMILIES:
        raise unknown_family(family)
    return config


def _model(place: ModelSource, config: Any, device: torch.device, options: LoadOptions) -> Any:
    if place.local and not place.weight_files() and not options.allow_pickle:
        raise UserError(
            f"The folder {place.source} holds no .safetensors weights; pickled weights can run code, so they are loaded "
            "only with --allow-pickle."
        )
    _attempt(place, "weights", place.check_index)
    parameters = _attempt(place, "configuration", check_sizes, config, place.most_numbers())
    arguments = _arguments(place, options) | dict(
        config=config,
        dtype=_dtype(config, options, parameters),
        attn_implementation="eager" if FAMILIES[config.get_text_config().model_type].eager_only else "sdpa",
        output_loading_info=True,
    )
    if place.gguf is None:
        arguments["use_safetensors"] = None if options.allow_pickle else True
    if options.device_map is not None:
        arguments["device_map"] = _device_map(options.device_map, config, place)
    if options.quantize is not None:
        arguments = {"device_map": device} | arguments | {"quantization_config": _quantization(options.quantize)}
    # Weights that are left on disk are read from their own files as they are needed; pickled ones are written once more.
    written_again = options.allow_pickle and options.device_map is not None
    folder = tempfile.TemporaryDirectory(prefix="arithscope-") if written_again else None
    if folder is not None:
        arguments["offload_folder"] = folder.name
    with redirect_stderr(io.StringIO()) if place.gguf else nullcontext():  # a bar that cannot be turned off
        hf_model, info = _attempt(place, "weights", AutoModelForCausalLM.from_pretrained, place.source, **arguments)
    if folder is not None:
        weakref.finalize(hf_model, folder.cleanup)
    # The library fills missing weights with random numbers and goes on. That would be silently wrong.
    absent = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if absent:
        raise UserError(
            f"The weights of {place.name} are incomplete: {absent[0]} and {len(absent) - 1} more are missing."
        )
    if all(p.is_meta for p in hf_model.parameters()) and not any(hasattr(m, "_hf_hook") for m in hf_model.modules()):
        raise UserError(
            "This version of transformers cannot leave all of a model on disk; put a part of it on cpu in the device map, or "
            "install transformers 5.15 or newer."
        )
    _check_shapes(hf_model, place)
    _check_finite(hf_model, place)
    if options.device_map is None and options.quantize is None:
        hf_model = hf_model.to(device)
    return hf_model


def _check_shapes(hf_model: Any, place: ModelSource) -> None:
    """The library takes weights from a GGUF file as they are, whatever the configuration in it says."""
    for name, module in hf_model.named_modules():
        if type(module) is torch.nn.Linear:
            wanted = (module.out_features, module.in_features)
        elif type(module) is torch.nn.Embedding:
            wanted = (module.num_embeddings, module.embedding_dim)
        else:
            continue
        if module.weight.shape != wanted:
            raise UserError(
                f"The weights of {place.name} are damaged: {name} is {tuple(module.weight.shape)}, but its configuration says "
                f"{wanted}."
            )


def _check_finite(hf_model: Any, place: ModelSource) -> None:
    for name, weight in hf_model.named_parameters():
        if weight.dtype in DTYPES.values() and weight.device.type != "meta" and weight.numel():
            ends = torch.stack(torch.aminmax(weight.detach()))  # NaN if there is one among them
            if not ends.isfinite().all():
                raise UserError(f"The weights of {place.name} are damaged: {name} holds numbers that are not finite.")


def _dtype(config: Any, options: LoadOptions, parameters: int) -> torch.dtype | str:
    if options.dtype != "auto":
        return DTYPES[options.dtype]
    if parameters < SMALL:
        return torch.float32
    stored = getattr(config, "dtype", None)
    return stored if stored in (torch.bfloat16, torch.float16) else torch.bfloat16


def _device_map(asked: str | DeviceMap, config: Any, place: ModelSource) -> str | DeviceMap:
    found = read_device_map(asked)
    if not isinstance(found, str):
        check_device_map(found, _without_weights(config))
        if place.gguf is not None and DISK in found.values():
            raise UserError("No part of a GGUF file can be left on disk; put it on cpu in the device map.")
    return found


def _without_weights(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _quantization(kind: str) -> Any:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError("Loading in 4 or 8 bits needs the package bitsandbytes; run: pip install 'arithscope[quant]'.")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=kind == "4bit", load_in_8bit=kind == "8bit")


def _weight_hash(place: ModelSource, hf_model: Any) -> str:
    files = place.weight_files()
    if not files:
        return hash_weights(hf_model)
    with ThreadPoolExecutor(4) as pool:
        digests = list(pool.map(_file_hash, files))
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_weights(hf_model: Any) -> str:
    """The hash of a model that has no files of its own."""
    digest = hashlib.sha256()
    for name, tensor in sorted(hf_model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.device.type == "meta":
            module, _, parameter = name.rpartition(".")
            tensor = weight_of(hf_model.get_submodule(module), parameter)
        digest.update(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tokenizer_hash(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(f"{text} bos={tokenizer.bos_token_id}".encode()).hexdigest()
