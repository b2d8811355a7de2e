"""Pickles of other programs, read without running anything; and written so that DeepFaceLab reads them."""
