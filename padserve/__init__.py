"""padserve: one exact, padding-free REST service for the transformers that most products run."""

__version__ = "0.1.0"
