"""Tokenizer: text to ids and back, with truncation that never changes shared state."""
