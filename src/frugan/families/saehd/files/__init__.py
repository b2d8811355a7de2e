"""The files that DeepFaceLab keeps models in, and DFM: what stands where, read and written."""
