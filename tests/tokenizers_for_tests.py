"""Tokenizers that split prompts in the ways real ones do."""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def word_tokenizer(pattern: str, words: list[str], bos: str | None = "<bos>") -> PreTrainedTokenizerFast:
    """Splits by a pattern and looks up each part whole."""
    vocabulary = dict.fromkeys([*words, "<bos>", "<unk>"])
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, unk_token="<unk>")


SIGNS = ["+", "-", "*", "/", "=", " ", "\n", " =", *(f" {o}" for o in "+-*/")]


def digit_splitting() -> PreTrainedTokenizerFast:
    """Each digit a token, as in Gemma, Mistral or SmolLM."""
    return word_tokenizer(r"\d| ?[-+*/=]|\s|.", [*map(str, range(10)), *SIGNS])


CHUNKS = [f"{n:0{digits}}" for digits in (1, 2, 3) for n in range(10**digits)]


def three_chunks() -> PreTrainedTokenizerFast:
    """Up to three digits a token, grouped from the left, as in Llama 3: 1234 is 123 and 4."""
    return word_tokenizer(r"\d{1,3}| ?[-+*/=]|\s|.", [*CHUNKS, *SIGNS])


def right_grouped() -> PreTrainedTokenizerFast:
    """Up to three digits a token, grouped from the right: 1012 is 1 and 012."""
    return word_tokenizer(r"\d{1,3}(?=(?:\d{3})*(?!\d))| ?[-+*/=]|\s|.", [*CHUNKS, *SIGNS])


def with_leading_spaces(limit: int, spaced_limit: int, bos: str | None = "<bos>") -> PreTrainedTokenizerFast:
    """A space is part of the next number, and fewer of these numbers are single tokens, as in GPT-2."""
    numbers = [*map(str, range(limit)), *(f" {n}" for n in range(spaced_limit))]
    return word_tokenizer(r" ?\d+| ?[-+*/=]|\s|.", [*numbers, *SIGNS], bos)


def joining_the_equals_sign(limit: int) -> PreTrainedTokenizerFast:
    """`=3` is one token: no position holds `=` alone."""
    return word_tokenizer(r"=\d+|\d+|.", [*map(str, range(limit)), *(f"={n}" for n in range(limit)), *SIGNS])


def joining_some_pairs(limit: int) -> PreTrainedTokenizerFast:
    """`7+` is one token: the split depends on the neighbouring number."""
    words = [*map(str, range(limit)), *(f"7{o}" for o in "+-*/"), *SIGNS]
    return word_tokenizer(r"7[-+*/]|\d+|.", words)


def without_star(limit: int) -> PreTrainedTokenizerFast:
    return word_tokenizer(r"\d+|.", [*map(str, range(limit)), "+", "-", "/", "="])


def byte_level(limit: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as in GPT-2 and Llama 3: a space is written Ġ, and numbers below `limit` (at most 100) are one token."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    spaced, pairs = [("Ġ", d) for d in "0123456789"], [tuple(str(n)) for n in range(10, limit)]
    merges = [*spaced, *pairs, *((f"Ġ{a}", b) for a, b in pairs), *(("Ġ", o) for o in "+-*/=")]
    vocabulary = dict.fromkeys([*bytes_, *("".join(pair) for pair in merges), "<bos>"])
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(vocabulary)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>")


def sentence_piece(digits: str = "0123456789", signs: str = "") -> PreTrainedTokenizerFast:
    """BPE as in Llama 2 and Gemma: ▁ before each word and in front, bytes for unknown characters; `digits` are tokens, and
    other digits are bytes. The ▁ before these signs is part of their tokens."""
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    words = dict.fromkeys(["<unk>", "<s>", *fallback, "▁", *digits, *"+-*/=", *(f"▁{sign}" for sign in signs)])
    merges = [("▁", sign) for sign in signs]
    model = models.BPE(
        {w: i for i, w in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    spaces = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([spaces[0], decoders.ByteFallback(), decoders.Fuse(), spaces[1]])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def misreading(tokenizer: PreTrainedTokenizerFast, letters: dict[str, str]) -> PreTrainedTokenizerFast:
    """A tokenizer that replaces letters before it reads a text."""
    before = tokenizer.backend_tokenizer.normalizer
    unused = {letter: chr(0xE000 + i) for i, letter in enumerate(letters)}  # so that letters can also be swapped
    steps = [normalizers.Replace(a, x) for a, x in unused.items()]
    steps += [normalizers.Replace(x, letters[a]) for a, x in unused.items()]
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([*steps, *([before] if before else [])])
    return tokenizer


def reading_words(limit: int, bos: str | None = "<bos>") -> PreTrainedTokenizerFast:
    """Words and numbers are tokens, with the space in front of them; of the operators' words, `divided by` takes two."""
    words = ["What", "is", "plus", "minus", "times", "divided", "by", "Answer", "The", "answer"]
    words += ["user", "model", "assistant", "system", "Today", "Jul", "2024"]
    numbers = [*map(str, range(limit)), *(f" {n}" for n in range(limit))]
    spaced = [each for word in [*words, *SIGNS] for each in (word, f" {word.strip()}")]
    letters = [*"?:.,;\n", *"abcdefghijklmnopqrstuvwxyz"]
    return word_tokenizer(r" ?[A-Za-z]+| ?\d+| ?[-+*/=]|\s|.", [*numbers, *spaced, *letters], bos)


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}<|start|>system<|end|>\n\nToday: {{ strftime_now('%d %b %Y') }}<|eot|>"
    "{% for message in messages %}{{ '<|start|>' + message['role'] + '<|end|>\n\n' + message['content'] | trim + '<|eot|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim }}"
    "{{ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MARKERS = ["<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<start_of_turn>", "<end_of_turn>"]


def with_chat(tokenizer: PreTrainedTokenizerFast, template: str) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template, whose turn markers are special tokens."""
    tokenizer.add_tokens(
        [AddedToken(marker, special=True, normalized=False) for marker in MARKERS], special_tokens=True
    )
    tokenizer.chat_template = template
    return tokenizer
