// SPDX-License-Identifier: Apache-2.0
// How a session ends for the threads of the target: with whole turns.
#ifndef NFP_ENDING_H
#define NFP_ENDING_H

// Each thread records what it works on to the end, and no later turn.
void nfp_turns_end(void);
void nfp_turns_go_on(void);
#endif
