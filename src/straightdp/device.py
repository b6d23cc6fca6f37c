"""Where the work runs: CUDA where there is one, else the CPU with the threads it was given."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from straightdp.threads import granted


@dataclass(frozen=True)
class Compute:
    """The device and the precision of forward passes; parameters stay in float32."""

    device: torch.device
    bf16: bool
    threads: int
    micro_batch: int
    checkpoint_every: int

    def autocast(self):
        """bfloat16 matrix products where the device has them; a no-op otherwise."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)


def compute(execution, threads: int | None = None) -> Compute:
    """Settle device, precision and threads from a preset's `execution` section.

    Gradient norms and clipped sums are formed in float32 under either precision, so that
    clipping stays exact. bfloat16 is chosen on CUDA alone: on a CPU it gains nothing.
    """
    threads = threads or granted() or execution.threads
    torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bf16 = execution.precision == "bf16" or (
        execution.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    )
    return Compute(device, bf16, threads, execution.micro_batch, execution.checkpoint_every)
