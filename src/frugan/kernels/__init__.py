"""Operations by kernels in Triton. Nobody imports them: they are found by the entry point group `frugan.ops`."""
