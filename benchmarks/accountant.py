"""Time to calibrate the noise of a cell: two releases and 2,000 subsampled steps."""

from __future__ import annotations

import time

from straightdp.mechanisms.accounting import GaussianRelease, calibrate_releases, calibrate_steps

DELTA, RATE, SHARE = 1e-5, 0.02, 4 / 17  # SHARE of epsilon is the releases'
WORKLOADS = {
    "one noise level": [(1.0, 2000)],
    "four noise levels": [(1.2, 500), (1.0, 500), (0.95, 500), (0.9, 500)],
}


def calibration() -> None:
    for target in (0.3, 1.0, 3.0, 10.0):
        sigma = calibrate_releases(SHARE * target, DELTA, 2)
        releases = [GaussianRelease("release", 1.0, sigma)] * 2
        for name, workload in WORKLOADS.items():
            begin = time.process_time()
            scale = calibrate_steps(target, DELTA, releases, workload, RATE)
            taken = time.process_time() - begin
            print(
                f"calibration, epsilon {target:g}, {name}: {taken:.2f} s, scale {scale:.4f}"
                "  (aim: under 2 s)"
            )
