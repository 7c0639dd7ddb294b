from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import small


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama as a folder in Hugging Face format; do not write to it."""
    folder = tmp_path_factory.mktemp("models") / "small-llama"
    subject = small("llama", "sdpa")
    subject.model.save_pretrained(folder)
    subject.tokenizer.save_pretrained(folder)
    return folder
