"""What training costs: memory, arithmetic and traffic, found by running the real thing on tensors without data."""

from frugan.memory.costs import Cost, NetworkCost, arithmetic_intensity, bound_by, network_cost
from frugan.memory.machine import Peaks, measure_latency, measure_peaks

__all__ = [
    "Cost",
    "NetworkCost",
    "Peaks",
    "arithmetic_intensity",
    "bound_by",
    "measure_latency",
    "measure_peaks",
    "network_cost",
]
