// SPDX-License-Identifier: Apache-2.0
// Forward: the signals that ask the monitor to end go to the program it has launched. What a terminal sends
// is not sent again: the program is in the same process group and has got it.
#ifndef NFPROBE_FORWARD_H
#define NFPROBE_FORWARD_H
#include <stdint.h>

// cdef begin
// Signals that are ignored stay ignored (nohup). One program at a time.
void nfp_forward_begin(int32_t pid);
// Puts back the handlers that were there before.
void nfp_forward_end(void);
// cdef end
#endif
