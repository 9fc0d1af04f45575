"""What a program wants of a plan: filters that decline what they are against, and what nothing is known of."""

from dataclasses import dataclass, field

from heddle.cudnn._errors import cudnnGraphNotSupportedError
from heddle.cudnn._types import behavior_note, numerical_note

_OF_CONVOLUTIONS = {numerical_note.FFT, numerical_note.WINOGRAD, numerical_note.WINOGRAD_TILE_4x4,
                    numerical_note.WINOGRAD_TILE_6x6, numerical_note.WINOGRAD_TILE_13x13}
# No kernel takes more than a block may have, on any GPU that Heddle has kernels for.
_MOST_SHARED_MEMORY = 227 * 1024


def notes_of(engine):
    """The behavior notes of an engine's plans."""
    return [behavior_note.RUNTIME_COMPILATION, behavior_note.SUPPORTS_CUDA_GRAPH_NATIVE_API] if engine == "cuda" else []


@dataclass
class Filters:
    workspace: int | None = None
    shared_memory: int | None = None
    engines: set[str] = field(default_factory=set)  # deselected
    selected_notes: list[behavior_note] = field(default_factory=list)
    deselected_notes: list[behavior_note] = field(default_factory=list)
    selected_numerics: list[numerical_note] = field(default_factory=list)
    deselected_numerics: list[numerical_note] = field(default_factory=list)

    def __str__(self):
        """Equal for filters that decline the same."""
        names = ([note.name for note in notes] for notes in (self.selected_notes, self.deselected_notes, self.selected_numerics,
                                                             self.deselected_numerics))
        return str([self.workspace, self.shared_memory, sorted(self.engines), *names])

    def check(self, engine, workspace_bytes):
        """Raises cudnnGraphNotSupportedError, in the words of the first filter that is against an engine's plan."""
        against = self._against(engine, workspace_bytes)
        if against is not None:
            raise cudnnGraphNotSupportedError(f"No execution plans support the graph. {against}")

    def _against(self, engine, workspace_bytes):
        if self.workspace is not None and workspace_bytes > self.workspace:
            return (f"The plan needs {workspace_bytes} bytes of workspace, and plans over {self.workspace} are deselected.")
        if engine in self.engines:
            return f"The engine {engine} supports it, but is deselected."
        has = notes_of(engine)
        for note in self.selected_notes:
            if note not in has:
                return f"The plan of the engine {engine} has not the behavior note {note.name}, which is selected."
        for note in self.deselected_notes:
            if note in has:
                return f"The plan of the engine {engine} has the behavior note {note.name}, which is deselected."
        for note in self.selected_numerics:
            if note in _OF_CONVOLUTIONS:
                return f"No plan has the numeric note {note.name}, which is selected."
            return f"Whether a plan has the numeric note {note.name} is not known, and it is selected."
        for note in self.deselected_numerics:
            if note not in _OF_CONVOLUTIONS:
                return f"Whether a plan has the numeric note {note.name} is not known, and it is deselected."
        if engine == "cuda" and self.shared_memory is not None and self.shared_memory < _MOST_SHARED_MEMORY:
            return (f"How much shared memory a plan takes is not known, and plans over {self.shared_memory} bytes are "
                    "deselected.")
        return None
