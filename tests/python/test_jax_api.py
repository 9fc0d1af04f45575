"""What heddle and heddle.jax show of themselves: names, types, docstrings, and JAX's own signature."""

import inspect
import typing

import heddle
import heddle.jax
import jax
import pytest

PUBLIC = [(module, name) for module in (heddle, heddle.jax) for name in module.__all__]


def functions(module, name):
    """The functions of a public name: itself, or its public methods."""
    thing = getattr(module, name)
    if not inspect.isclass(thing):
        return [thing]
    return [getattr(method, "fget", method) for key, method in vars(thing).items()
            if (key == "__init__" or not key.startswith("_")) and (callable(method) or isinstance(method, property))]


@pytest.mark.parametrize("module, name", PUBLIC, ids=[f"{module.__name__}.{name}" for module, name in PUBLIC])
def test_public_functions_have_types_and_docstrings(module, name):
    assert inspect.getdoc(getattr(module, name))
    for function in functions(module, name):
        function = inspect.unwrap(function)
        types = typing.get_type_hints(function)
        parameters = [key for key in inspect.signature(function).parameters if key != "self"]
        assert [key for key in [*parameters, "return"] if key not in types] == []


def test_the_package_says_that_it_has_types(root):
    assert (root / "bindings" / "python" / "heddle" / "py.typed").is_file()


def test_dot_product_attention_has_the_signature_of_jax():
    ours = inspect.signature(heddle.jax.dot_product_attention).parameters
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    shape = lambda parameters: [(p.name, p.kind, p.default) for p in parameters]
    if "return_residual" not in theirs:  # an older JAX
        ours = {key: value for key, value in ours.items() if key != "return_residual"}
    assert shape(ours.values()) == shape(theirs.values())
