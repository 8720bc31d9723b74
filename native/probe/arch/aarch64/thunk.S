// SPDX-License-Identifier: Apache-2.0
// arm64 is not supported yet: no template calls these.
	.text
	.irp name, slow, counted, shares, receive_exit, packets_entry, packets_exit, counted_entry, counted_exit, \
		trusted_entry, ending_receive_exit, ending_counted_exit
	.globl nfp_\name\()_thunk
	.hidden nfp_\name\()_thunk
nfp_\name\()_thunk:
	.endr
	ret

	.section .note.GNU-stack, "", %progbits
