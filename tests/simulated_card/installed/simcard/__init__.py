"""A card made of Python: a device to torch, a processor underneath. For tests.

What it models, each in a file of its own: what torch sees (`device.py`), memory and its allocator (`memory.py`), when
copies are done (`time.py`), what is sure to come after what (`order.py`), failures inside of backward (`backward.py`).
`card.py` is how frugan asks it. Kernels compute on a processor, at once, in the processor's arithmetic (convolutions in
half precision in fp32, rounded: processors without units for it are slow there). Speed, rounding of a card's own,
autotuning, workspaces of libraries, compiled kernels and graphs are not modelled.

What is said once for a process, and for those that it starts, stands in the environment:

- SIMCARD_COUNT: how many there are (1).
- SIMCARD_BYTES: memory of each (8 GiB).
- SIMCARD_KERNEL_BYTES: by how much the context grows when an operation of a kind is first done (0).
- SIMCARD_SCHEDULE: when copies are done that nobody waited for yet: "latest" (as late as is allowed) or "earliest".
- SIMCARD_REFUSE: number of the allocation, from 1, at which memory runs out once; "7:3" refuses 7, 8 and 9.
- SIMCARD_RECORD: a file to which the process adds what it counted when it ends.
"""
