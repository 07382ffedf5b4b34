"""Raises ImportError: these callbacks were of TFKerasTrial."""

from determined.keras._old_names import refusal

raise refusal("callbacks")
