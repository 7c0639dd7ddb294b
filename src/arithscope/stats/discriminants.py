"""Linear discriminant analysis in closed form, of many variables at once.

A linear discriminant gives a state x the value k of a variable with the largest

    δ_k(x) = n · (x − ½μ_k)ᵀ W⁻¹ μ_k + log(n_k / n)

where n_k of the n training items have this value, μ_k is their mean, and W is the scatter within the values, plus a
ridge λ on its diagonal. This is Bayes' rule for normal distributions with one covariance W/n. States are centred first.

λ is n times RIDGE times the mean variance of a coordinate, plus n times FAINT times its mean square. So directions in which
states hardly differ, beside other directions or beside the size of the states, count for little: whoever reads a residual
stream normalises it first. The result does not change if all states are rotated or scaled.

Least squares regression on indicators of the values would cost the same, but never gives a value whose states lie
between those of others on a line ("masking"), and models may well hold a digit as a number on a line or a helix.

With T the scatter of all states plus λ, M the sums of the states of each value, and D the diagonal matrix of the n_k,
Woodbury's formula turns W = T − M D⁻¹ Mᵀ into

    W⁻¹ M D⁻¹ = C (D − Mᵀ C)⁻¹,  C = T⁻¹ M

T knows nothing of the variables, so it is factorised once for all of them; each adds only a small matrix.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

RIDGE = 1e-2
FAINT = 1e-4  # the square of a hundredth of the states' size

Counts = Float[Tensor, "states values"]


def classified(states: Float[Tensor, "states width"], variables: Sequence[Counts]) -> list[Int[np.ndarray, " states"]]:
    """Which value of each variable a linear discriminant gives each state.

    Args:
        states: Distinct states, those of the training items and others.
        variables: For each variable, how many training items have a state and a value of it. Every value has some, and all
            variables are about the same items. In the dtype and on the device of the states.

    Returns:
        For each variable, the value of each state, as an index; the first of those between which there is nothing to choose.
    """
    weight = variables[0].sum(1)
    n = weight.sum()
    size = (weight @ states.square()).mean()
    states = states - states[0]  # so that equal states stay equal to the last digit
    centred = states - weight @ states / n
    scatter = centred.T @ (weight[:, None] * centred)
    ridge = RIDGE * scatter.diagonal().mean() + FAINT * size
    factor = torch.linalg.cholesky(scatter + ridge * torch.eye(states.shape[1]).to(scatter))
    sums = centred.T @ torch.cat([*variables], dim=1)
    solved = torch.cholesky_solve(sums, factor)
    sizes = [counts.shape[1] for counts in variables]
    vectors, offsets = [], []
    for counts, own, c in zip(variables, sums.split(sizes, 1), solved.split(sizes, 1), strict=True):
        of_value = counts.sum(0)
        v = torch.linalg.solve(of_value.diag() - own.T @ c, c, left=False)
        vectors.append(v)
        offsets.append((of_value / n).log() - 0.5 * n * (own * v).sum(0) / of_value)
    scores = n * (centred @ torch.cat(vectors, dim=1)) + torch.cat(offsets)
    return [own.cpu().numpy().argmax(1) for own in scores.split(sizes, 1)]
