"""How many cases a kernel is tried with: Triton's interpreter takes its time over each program."""

from hypothesis import Phase, settings

SETTINGS = settings(
    max_examples=settings().max_examples // 3,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate],
)
"""A third of the profile's, which is the short one or the long one."""
