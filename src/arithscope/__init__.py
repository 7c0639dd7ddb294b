"""arithscope: a microscope for arithmetic in language models."""

__version__ = "0.2.0"
