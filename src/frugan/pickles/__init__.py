"""DeepFaceLab's pickles, read without running anything and written so that it reads them."""
