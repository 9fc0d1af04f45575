"""A tensor of a graph, as programs describe it. Setters return the tensor, so that they chain."""

from collections.abc import Sequence

from heddle import _checks
from heddle.cudnn._types import as_data_type, data_type, member_of, tensor_reordering


class Tensor:
    """Made by a graph's methods alone; a key of packs by identity."""

    __slots__ = (
        "__weakref__",
        "_alignment",
        "_constant",
        "_data_type",
        "_dim",
        "_home",
        "_multiplier",
        "_name",
        "_pass_by_value",
        "_ragged_offset",
        "_reordering",
        "_stride",
        "_uid",
        "_uid_given",
        "_vector",
        "_virtual",
    )

    def __init__(self, home, name="", virtual=False):
        self._home = home  # the Tensors it belongs to
        self._name, self._virtual = name, virtual
        self._data_type, self._dim, self._stride = data_type.NOT_SET, None, None
        self._uid, self._uid_given = 0, False
        self._pass_by_value, self._constant = False, None
        self._ragged_offset, self._multiplier = None, 1
        self._reordering = tensor_reordering.NONE
        self._alignment, self._vector = 16, (1, -1)

    def __repr__(self):
        return (f"cudnn.tensor(name={self._name!r}, uid={self._uid}, dim={list(self._dim or ())}, "
                f"stride={list(self._stride or ())}, data_type={self._data_type})")

    def set_name(self, name: str) -> "Tensor":
        self._name = _checks.text("name", name)
        return self

    def set_uid(self, uid: int) -> "Tensor":
        """How packs call it; 0 is a uid like any other. Raises ValueError if another tensor of the graph has it."""
        self._home.give_uid(self, _checks.whole("uid", uid))
        return self

    def set_dim(self, dim: Sequence[int]) -> "Tensor":
        self._dim = _checks.dims("dim", dim)
        return self

    def set_stride(self, stride: Sequence[int]) -> "Tensor":
        """In elements."""
        self._stride = _checks.dims("stride", stride)
        return self

    def set_data_type(self, data_type: object) -> "Tensor":
        """A cudnn.data_type, or one of torch or NumPy."""
        self._data_type = as_data_type("data_type", data_type)
        return self

    def set_is_virtual(self, is_virtual: bool) -> "Tensor":
        self._virtual = _checks.flag("is_virtual", is_virtual)
        return self

    def set_output(self, is_output: bool) -> "Tensor":
        """True: it is bound, and not virtual."""
        self._virtual = not _checks.flag("is_output", is_output)
        return self

    def set_is_pass_by_value(self, is_pass_by_value: bool) -> "Tensor":
        """A scalar in the host's memory."""
        self._pass_by_value = _checks.flag("is_pass_by_value", is_pass_by_value)
        return self

    def set_ragged_offset(self, ragged_offset: "Tensor | None") -> "Tensor":
        """Packed sequences: the INT32 or INT64 [B+1, 1, 1, 1] of element offsets at which they begin and the last ends."""
        self._ragged_offset = self._home.own("ragged_offset", ragged_offset)
        return self

    def set_ragged_offset_multiplier(self, multiplier: int) -> "Tensor":
        """Offsets count this many elements each."""
        self._multiplier = _checks.whole("multiplier", multiplier)
        return self

    def set_reordering_type(self, reordering_type: tensor_reordering) -> "Tensor":
        self._reordering = member_of(tensor_reordering, "reordering_type", reordering_type)
        return self

    def set_alignment(self, alignment: int) -> "Tensor":
        """Bytes that the address is a multiple of. Heddle looks at each address itself."""
        if _checks.whole("alignment", alignment) < 1:
            raise ValueError(f"alignment is {alignment}, expected 1 byte at least.")
        self._alignment = alignment
        return self

    def set_vector_count_and_dimension(self, count: int, dimension: int) -> "Tensor":
        """Elements that lie together along a dim: more than 1 is declined when the graph is checked."""
        self._vector = _checks.whole("count", count), _checks.whole("dimension", dimension)
        return self

    def get_name(self) -> str:
        return self._name

    def get_uid(self) -> int:
        """0 until one is given or, when the graph is validated, found."""
        return self._uid

    def get_dim(self) -> list[int]:
        """Empty until it is set or, when the graph is validated, inferred."""
        return list(self._dim or ())

    def get_stride(self) -> list[int]:
        return list(self._stride or ())

    def get_data_type(self) -> data_type:
        return self._data_type

    def get_is_virtual(self) -> bool:
        return self._virtual

    def get_is_pass_by_value(self) -> bool:
        return self._pass_by_value

    def get_has_compile_time_constant(self) -> bool:
        """Whether it is a number of the graph, and in no pack."""
        return self._constant is not None

    def get_ragged_offset(self) -> "Tensor | None":
        return self._ragged_offset

    def get_ragged_offset_multiplier(self) -> int:
        return self._multiplier

    def get_reordering_type(self) -> tensor_reordering:
        return self._reordering

    def get_alignment(self) -> int:
        return self._alignment

    def get_vector_count(self) -> int:
        return self._vector[0]

    def get_vector_dimension(self) -> int:
        return self._vector[1]


class Tensors:
    """The tensors of a graph and of the score expressions inside it: whose they are, and their uids."""

    def __init__(self):
        self._given = {}  # uid -> tensor

    def new(self, name="", virtual=False):
        return Tensor(self, name, virtual)

    def own(self, what, tensor):
        """None, or one of these tensors."""
        if tensor is None:
            return None
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{what} is of type {type(tensor).__name__}, expected a tensor of the graph.")
        if tensor._home is not self:
            raise ValueError(f"{what} is the tensor {tensor._name!r} of another graph, expected one of this graph.")
        return tensor

    def give_uid(self, tensor, uid):
        other = self._given.get(uid, tensor)
        if other is not tensor:
            raise ValueError(f"The uid {uid} is given to two tensors, {other._name!r} and {tensor._name!r}, expected one.")
        if tensor._uid_given:
            del self._given[tensor._uid]
        self._given[uid] = tensor
        tensor._uid, tensor._uid_given = uid, True

    def find_uids(self, used):
        """Gives those of `used` that have none the lowest positive ones; they give way to a program's own."""
        taken = set(self._given)
        for tensor in used:
            if not tensor._uid_given and tensor._uid not in taken and tensor._uid != 0:
                taken.add(tensor._uid)
            elif not tensor._uid_given:
                tensor._uid = 0
        free = 1
        for tensor in used:
            if tensor._uid_given or tensor._uid:
                continue
            while free in taken:
                free += 1
            tensor._uid = free
            taken.add(free)
