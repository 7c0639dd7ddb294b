"""A GGUF file is parsed once, and read as transformers reads it by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from arithscope.errors import UserError
from arithscope.models import gguf_file
from arithscope.models.gguf_file import open_gguf, parsed_once
from arithscope.models.load import LoadOptions, load
from tests.fuzz.gguf_file import write_llama

TEMPLATE = "{% for message in messages %}<|{{ message['role'] }}|> Größe: {{ message['content'] }}\n{% endfor %}"
NUMBERS = 13  # transformers 5.0 cannot read a list of one merge
TEXTS = ["1+2=", "10+10=20", "1 + 2 = 3", "", "é <s></s>", "<|im_start|>user\nAdd 12 and 345.<|im_end|>\n", "7" * 50]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_llama(path, NUMBERS, TEMPLATE, quantized=True)
    return path


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were parsed, in order."""
    parsed: list[Path] = []
    original = gguf.GGUFReader.__init__

    def counted(self: Any, path: Path, *args: Any) -> None:
        parsed.append(Path(path))
        original(self, path, *args)

    monkeypatch.setattr(gguf.GGUFReader, "__init__", counted)
    return parsed


def assert_read_as_by_transformers(file: Path, dtype: str = "float32", **options: Any) -> None:
    """Every weight and buffer, the configuration, and what the tokenizer does to some texts."""
    location = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name, "local_files_only": True}
    expected = AutoModelForCausalLM.from_pretrained(**location, dtype=getattr(torch, dtype))
    model = load(str(file), options=LoadOptions(dtype=dtype, **options))
    weights, own = expected.state_dict(), model.hf_model.state_dict()
    assert weights.keys() == own.keys()
    for name, weight in weights.items():
        assert own[name].dtype == weight.dtype
        assert torch.equal(own[name], weight), name
    different = {"_attn_implementation_internal", "dtype", "quantization_config"}
    configs = [{k: v for k, v in vars(m.config).items() if k not in different} for m in (expected, model.hf_model)]
    assert configs[0] == configs[1]
    tokenizer = AutoTokenizer.from_pretrained(**location)
    assert model.tokenizer(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    assert model.tokenizer.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    if model.tokenizer.bos_token is None:  # where the file says that texts do not begin with one
        tokenizer.bos_token = None
    assert model.tokenizer.special_tokens_map == tokenizer.special_tokens_map
    assert model.tokenizer.chat_template == tokenizer.chat_template


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_is_read_as_by_transformers(file: Path, dtype: str) -> None:
    assert_read_as_by_transformers(file, dtype)


def test_a_device_map_is_kept(file: Path) -> None:
    assert_read_as_by_transformers(file, device_map="auto")


@pytest.mark.parametrize(("add_bos", "tokens"), [(None, 5), (True, 5), (False, 4)])
def test_prompts_begin_with_bos_unless_the_file_says_that_texts_do_not(
    tmp_path: Path, add_bos: bool | None, tokens: int
) -> None:
    path = tmp_path / "model.gguf"
    write_llama(path, NUMBERS, add_bos=add_bos)
    encoder = load(str(path)).encoder
    assert encoder.length == tokens
    assert encoder.tokens(encoder.encode(encoder.examples())[0]).count("<s>") == tokens - 4


@pytest.mark.real
@pytest.mark.skipif("ARITHSCOPE_GGUF" not in os.environ, reason="ARITHSCOPE_GGUF names no file")
def test_a_real_file_is_read_as_by_transformers() -> None:
    assert_read_as_by_transformers(Path(os.environ["ARITHSCOPE_GGUF"]).resolve())


def test_a_file_is_parsed_once(file: Path, parses: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    load(str(file))
    assert parses == [file]
    monkeypatch.chdir(file.parent)
    load(file.name)
    assert parses == [file, Path(file.name)]


def test_the_chat_template_is_the_tokenizers(file: Path, tmp_path: Path) -> None:
    tokenizer = load(str(file)).tokenizer
    assert tokenizer.chat_template == TEMPLATE
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "1+2"}], tokenize=False)
    assert chat == "<|user|> Größe: 1+2\n"
    write_llama(tmp_path / "plain.gguf", NUMBERS)
    assert load(str(tmp_path / "plain.gguf")).tokenizer.chat_template is None


def test_another_reader_of_the_library_is_not_needed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(self: Any, *args: Any) -> None:
        raise TypeError("this version calls it otherwise")

    monkeypatch.setattr(gguf_file._FastReader, "_get_field_parts", unknown)
    assert_read_as_by_transformers(file)


def test_a_library_that_needs_its_own_reader_gets_it(
    file: Path, parses: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "open_gguf", lambda path: object())  # has neither fields nor tensors
    assert_read_as_by_transformers(file)
    assert len(parses) > 3


def test_the_library_is_left_as_it_was(file: Path) -> None:
    original = gguf.GGUFReader, gguf.get_tensor_name_map
    load(str(file))
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == original
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be loaded"):
        load(str(file))
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == original


def test_other_files_have_their_own_readers(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    write_llama(other, numbers=20)
    readers = parsed_once(file, lambda: [gguf.GGUFReader(str(path)) for path in (file, file, other)])
    assert readers[0] is readers[1]
    tokens = [len(reader.fields["tokenizer.ggml.tokens"].data) for reader in readers]
    assert tokens[2] - tokens[0] == 20 - NUMBERS


def test_own_refusals_are_not_tried_again() -> None:
    tries = []

    def refuse() -> None:
        tries.append(1)
        raise UserError("The model is too large.")

    with pytest.raises(UserError, match="too large"):
        parsed_once(Path("model.gguf"), refuse)
    assert len(tries) == 1


numbers = st.integers(-(2**31), 2**31 - 1)
arrays = st.one_of(
    st.lists(st.text(max_size=20), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=1, max_size=6),
    st.lists(st.floats(width=32), min_size=1, max_size=6),
    st.lists(numbers, min_size=1, max_size=6),
    st.lists(st.lists(numbers, min_size=1, max_size=3), min_size=1, max_size=3),
)


@given(
    st.lists(arrays, max_size=4),
    st.sampled_from([gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG]),
)
def test_arrays_are_those_of_the_library(
    tmp_path_factory: pytest.TempPathFactory, values: list[list[Any]], endianness: gguf.GGUFEndian
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "arrays.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=endianness)
    for number, value in enumerate(values):
        writer.add_array(f"array.{number}", value)
    writer.add_string("last", "one")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    own, expected = gguf_file._FastReader(path).fields, gguf.GGUFReader(path).fields
    assert own.keys() == expected.keys()
    for name, field in expected.items():
        assert own[name].types == field.types
        items = [[bytes(each.parts[i]) for i in each.data] for each in (own[name], field)]
        assert items[0] == items[1]
        assert own[name].contents() == pytest.approx(field.contents(), nan_ok=True)
    assert type(open_gguf(path)) is gguf_file._FastReader
