"""TensorFlow's checkpoints ("bundles": an index, and files of numbers), read without TensorFlow."""
