"""A page that shows and plays a chorale: one HTML file that loads nothing else."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from modalities.sequence.midi import STEPS_PER_QUARTER, TEMPO, held_notes
from modalities.sequence.tokenizers import VOICES
from zoo.pages import fill_page
from zoo.results import one_line

if TYPE_CHECKING:
    from modalities.sequence.results import Chorale

__all__ = ["page"]


def page(chorale: Chorale) -> str:
    """A page with the notes of the four voices, which plays them and offers them as a MIDI file.

    Args:
        chorale: The result of a model, which the page names.

    Returns:
        The HTML text; names of models and prompts stand in it as text, whatever they hold.

    Raises:
        DataError: If it has no step.
        MissingDependencyError: If mido is not installed.
    """
    pitches, prompt = chorale.pitches, chorale.prompt_steps
    midi = chorale.midi()
    voices = zip(VOICES, held_notes(pitches), strict=True)
    data: dict[str, Any] = {
        "title": one_line(f"A chorale by {chorale.model}"),
        "about": f"{chorale.about}{'' if not prompt else one_line(f', from the prompt {chorale.name}')}.",
        "steps": len(pitches),
        "prompt_steps": prompt,
        "steps_per_quarter": STEPS_PER_QUARTER,
        "tempo": TEMPO,
        "voices": [{"name": name, "notes": notes} for name, notes in voices],
        "midi": base64.b64encode(midi).decode("ascii"),
    }
    return fill_page("modalities.sequence", "player.html", title=data["title"], data=data)
