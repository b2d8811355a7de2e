"""Memory, arithmetic and traffic of a training step, found by running the real thing on tensors without data.

Knows PyTorch, and neither generators nor frugan's engine. README.md beside this file shows how it is used.
"""

from frugan.stepmemory.dataless import META, Dataless, WithoutData
from frugan.stepmemory.measurement import Measurement, StepMemory, measure

__all__ = ["META", "Dataless", "Measurement", "StepMemory", "WithoutData", "measure"]
