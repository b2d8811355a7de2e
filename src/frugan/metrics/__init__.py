"""How good generated pictures are."""

from frugan.metrics.digit_classifier import DigitClassifier, class_accuracy, trained_on_generated

__all__ = ["DigitClassifier", "class_accuracy", "trained_on_generated"]
