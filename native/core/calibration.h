// SPDX-License-Identifier: Apache-2.0
// Calibration: what one probed call adds on this CPU, measured with the real trampoline in the monitor's own
// memory. Once per session.
#ifndef NFPROBE_CALIBRATION_H
#define NFPROBE_CALIBRATION_H

// cdef begin
// Ticks that entry and exit probe add to a call: the smallest median of some rounds. Negative: -errno.
double nfp_calibrate_call(void);
// cdef end
#endif
