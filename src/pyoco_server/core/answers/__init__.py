"""Answers without a model: sentences of a text, ranked against a question. Pure and deterministic on every machine."""
