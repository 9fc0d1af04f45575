"""A graph's plan, of which there is one, and its engine, which has no knobs: how programs choose among several."""

from collections.abc import Mapping, Sequence

from heddle import _checks
from heddle.cudnn._errors import cudnnGraphNotSupportedError
from heddle.cudnn._filters import Filters, notes_of
from heddle.cudnn._handle import Handle, checked
from heddle.cudnn._knobs import Knob
from heddle.cudnn._types import behavior_note, build_plan_policy, heur_mode, knob_type, member_of, numerical_note


class Plans:
    """The methods. Filters hold from check_support on; what cannot be known of a plan is declined, not passed over."""

    def __init__(self) -> None:
        self._filters = Filters()

    # ---- Engines and knobs

    def get_engine_count(self) -> int:
        """1: whichever of the device's engines runs the graph."""
        self._validated()
        return 1

    def get_knobs_for_engine(self, engine_id: int) -> list[Knob]:
        """None of them, of engine 0."""
        _check_engine(engine_id)
        self._validated()
        return []

    def create_execution_plan(self, engine_id: int, knobs: Mapping[knob_type, int]) -> None:
        """As create_execution_plans, of engine 0 and with no knobs. A knob is declined."""
        _check_engine(engine_id)
        if knobs is not None and not isinstance(knobs, Mapping):
            raise TypeError(f"knobs is of type {type(knobs).__name__}, expected a dict of cudnn.knob_type to ints.")
        for kind, choice in (knobs or {}).items():
            member_of(knob_type, "A knob", kind)
            raise cudnnGraphNotSupportedError(f"Engine 0 is given the knob {kind.name} = {choice}, expected none: it has none to "
                                              "turn.")
        self.create_execution_plans([heur_mode.A])

    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, dict[knob_type, int]]:
        """(0, {}), of index 0: what create_execution_plan takes to find the same plan."""
        check_index(index)
        self._planned()
        return 0, {}

    # ---- Filters

    def deselect_workspace_greater_than(self, workspace: int) -> "Plans":
        """Declines, in check_support, a plan that needs more bytes of workspace."""
        self._filters.workspace = _checks.whole("workspace", workspace)
        return self

    def deselect_shared_mem_greater_than(self, shared_memory: int) -> "Plans":
        """Declines a GPU's plan where more bytes of shared memory than these could be needed."""
        self._filters.shared_memory = _checks.whole("shared_memory", shared_memory)
        return self

    def deselect_engines(self, engines: Sequence[str]) -> "Plans":
        """Declines plans of the engines of these names, "cpu" and "cuda"."""
        self._filters.engines |= {_checks.text("The name of an engine", name) for name in _listed("engines", engines)}
        return self

    def select_behavior_notes(self, notes: Sequence[behavior_note]) -> "Plans":
        """Declines plans that lack one of these."""
        self._filters.selected_notes = _members(behavior_note, notes)
        return self

    def deselect_behavior_notes(self, notes: Sequence[behavior_note]) -> "Plans":
        """Declines plans that have one of these."""
        self._filters.deselected_notes = _members(behavior_note, notes)
        return self

    def select_numeric_notes(self, notes: Sequence[numerical_note]) -> "Plans":
        """Plans do not tell these of themselves: what would have to be known is declined."""
        self._filters.selected_numerics = _members(numerical_note, notes)
        return self

    def deselect_numeric_notes(self, notes: Sequence[numerical_note]) -> "Plans":
        """As select_numeric_notes; those of convolutions no plan has."""
        self._filters.deselected_numerics = _members(numerical_note, notes)
        return self

    def get_behavior_notes(self) -> list[behavior_note]:
        """What is known of the plan: on a GPU that kernels are compiled for it, and that a CUDA graph holds its launches."""
        return notes_of(self._planned().device)

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[behavior_note]:
        """As get_behavior_notes, of index 0."""
        check_index(index)
        return self.get_behavior_notes()

    # ---- The plan

    def build_plan_at_index(self, index: int) -> None:
        """As build_plans; there is one plan, of index 0."""
        check_index(index)
        self.build_plans(build_plan_policy.HEURISTICS_CHOICE)

    def warmup(self, handle: Handle | None = None) -> None:
        """A plan is ready for its first execution once it is built: checks that it is."""
        if handle is not None:
            checked(handle)
        self._built()

    def autotune(self, variant_pack: object = None, workspace: object = None, handle: Handle | None = None,
                 implementation: object = None) -> None:
        """The fastest of one plan is found without a run."""
        self.warmup(handle)

    def get_autotune_workspace_size(self) -> int:
        """As get_workspace_size."""
        return self.get_workspace_size()

    def get_plan_name(self) -> str:
        """For people: what the plan does, a line for each step."""
        return self._built().plan.description

    def get_plan_name_at_index(self, index: int) -> str:
        """As get_plan_name, of index 0."""
        check_index(index)
        return self.get_plan_name()

    def _validated(self):
        if self._lowered is None:
            self.validate()
        self._refuse_other_ops()

    def _planned(self):
        """The binding once create_execution_plans has found it."""
        if self._modes is None:
            raise ValueError("The graph has no plan yet, expected create_execution_plans before.")
        return self._binding(self._device())


def check_index(index):
    """There is one plan."""
    if _checks.whole("index", index) != 0:
        raise ValueError(f"There is no plan at index {index}, expected 0: Heddle makes one plan.")


def _check_engine(engine_id):
    if _checks.whole("engine_id", engine_id) != 0:
        raise ValueError(f"There is no engine {engine_id}, expected 0: Heddle has one for each device.")


def _members(enumeration, notes):
    return [member_of(enumeration, "A note", note) for note in _listed("notes", notes)]


def _listed(what, given):
    if not isinstance(given, (list, tuple, set, frozenset)):
        raise TypeError(f"{what} is of type {type(given).__name__}, expected a list.")
    return list(given)
