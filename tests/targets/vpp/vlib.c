// SPDX-License-Identifier: Apache-2.0
// The double's libvlib: exports what VPP's exports, and holds the data that it leads to. See vlib.h.
#include "vlib.h"

#if RELEASE == 2606
struct vlib_global_main vlib_global_main;
#else
vlib_main_t vlib_global_main;
vlib_main_t **vlib_mains;
#endif
