"""The weights of a model: how many parameters, how they are stored, what one GPU holds of them."""

from kvquota_api.memory.parameters.counting import count_parameters
from kvquota_api.memory.parameters.per_gpu import Weights, weights_per_gpu
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor

__all__ = ["ParameterCount", "Tensor", "Weights", "count_parameters", "weights_per_gpu"]
