"""How the parity suite compares: NaN is never lost, and small gradients have their own scale."""

import math

import pytest
import torch
from group import of_gradients, outside, worst


@pytest.mark.parametrize("values", [[math.nan, 1.0], [1.0, math.nan], [1.0, math.nan, 2.0]])
def test_what_is_not_a_number_is_the_worst(values):
    assert math.isnan(worst(values))
    assert worst([-3.0, 2.0]) == 3.0


def gradients(**values):
    return {name: torch.tensor(value) for name, value in values.items()}


def test_each_parameter_is_compared_relative_to_its_own_gradients():
    """A lost gradient, a millionth of another's, and one that is only rounding."""
    expected = gradients(large=[1.0, -1.0], small=[4e-6, 0.0], nothing=[1e-8, -1e-8])
    found = of_gradients(gradients(large=[1.0, -1.0], small=[0.0, 0.0], nothing=[-1e-8, 1e-8]), expected)
    assert found["gradient"] == pytest.approx(4e-6), "within the tolerance of float32"
    assert outside(found, native=False) == {"parameter": pytest.approx(0.04)}
    rounded = of_gradients(gradients(large=[1.0, -1.0], small=[4e-6, 0.0], nothing=[-1e-8, 1e-8]), expected)
    assert outside(rounded, native=False) == {}
    spoilt = of_gradients(gradients(large=[1.0, -1.0], small=[4e-6, math.nan], nothing=[1e-8, -1e-8]), expected)
    assert outside(spoilt, native=False).keys() == {"gradient", "parameter"}
