// SPDX-License-Identifier: Apache-2.0
// What follows an opcode, one letter for each, as the opcode maps of the manuals have it (Intel SDM volume 2,
// appendix A). Only what is the same in every combination of prefixes that opcodes.c lets through has a letter:
// tests/fuzz/test_fuzz_instructions.py compares each of them with the full decoder. Included by opcodes.c.
#ifndef NFPROBE_CORE_X86_64_OPCODEMAPS_H
#define NFPROBE_CORE_X86_64_OPCODEMAPS_H

enum {
	UNKNOWN = '-',
	ALONE = '.',
	MODRM = 'm',
	MODRM_MEMORY = 'M', // its operand is in memory
	MODRM_REGISTER = 'r', // or in a register
	MODRM_BYTE = 'i', // and an immediate byte
	MODRM_REGISTER_BYTE = 's',
	MODRM_WORD = 'z', // and an immediate of 32 bits, or of 16 as the operand size says
	BYTE = 'b',
	WORD = 'w', // 32 or 16 bits
	QUADWORD = 'q', // 64 bits with REX.W
	BRANCH_BYTE = 'j',
	BRANCH_WORD = 'J', // always 32 bits
	GROUP = 'g', // ModRM says more of the opcode
	COPROCESSOR = 'x', // the same
	MOVE = 'v',
	ADDRESS = 'l', // lea
	PUSH_POP = 'p',
	RETURN = 'e',
	TRAP = 't', // syscall, int3
	TRAP_BYTE = 'n', // int
	VECTOR = 'V', // the first byte of a VEX or EVEX prefix
};

static const char one_byte[] = // clang-format off
	"mmmmbw--mmmmbw--mmmmbw--mmmmbw--mmmmbw--mmmmbw--mmmmbw--mmmmbw--"
	"----------------pppppppppppppppp--Vm----wzbi----jjjjjjjjjjjjjjjj"
	"iz-immmmmvmv-l-g..........-.....----....bw......bbbbbbbbqqqqqqqq"
	"iieeVVgg-.--tn--mmmm----mxxxmxxxjjjj----JJ-j--------..gg......gg";

// Behind 0f; by what stands before: nothing, 66, f3, f2.
static const char two_bytes[4][257] = {
	"-----t-----.-m--mmmMmmmMm------m--------mmmMmmmm....------------"
	"mmmmmmmmmmmmmmmmrmmmmmmmmmmmmmmmmmmmmmmmmmmm--mmigggmmm.------mm"
	"JJJJJJJJJJJJJJJJmmmmmmmmmmmmmmmm...mim--..-mimgmmm-m--mm--gmmmmm"
	"mmiMisig........-mmmmm-rmmmmmmmmmmmmmm-Mmmmmmmmm-mmmmmmrmmmmmmm-",
	"-----------.-m--mmMMmmMMm------m--------mmmMmmmm....------------"
	"mmmmmmmmmmmmmmmmrm--mmmmmmmmmmmmmmmmmmmmmmmmmmmmigggmmm-----mmmm"
	"----------------mmmmmmmmmmmmmmmm...mim--..-mim-mmm-m--mm--gmmmmm"
	"mmi-isig........mmmmmmmrmmmmmmmmmmmmmmmMmmmmmmmm-mmmmmmrmmmmmmm-",
	"----------------mmm---m-------g-----------m-mm------------------"
	"-----------------mmm----mmmmmmmm---------------mi-------------mm"
	"--------------------------------------------------------m---mm--"
	"--i-------------------r---------------m-------------------------",
	"----------------mmm-----------------------m-mm------------------"
	"-----------------m------mmm-mmmm----------------i-----------mm--"
	"----------------------------------------------------------------"
	"--i-------------m-----r---------------m---------M---------------",
};

// Behind 0f 38; by what stands before: nothing, 66..
static const char three_bytes[2][257] = {
	"mmmmmmmmmmmm----------------mmm---------------------------------"
	"----------------------------------------------------------------"
	"----------------------------------------------------------------"
	"--------mmmmmm----------------------------------MM--------------",
	"mmmmmmmmmmmm----m---mm-m----mmm-mmmmmm--mmMm----mmmmmm-mmmmmmmmm"
	"mm--------------------------------------------------------------"
	"----------------------------------------------------------------"
	"---------------------------mmmmm----------------MM----m---------",
};

// Behind 0f 3a; by what stands before: nothing, 66.
static const char three_bytes_immediate[2][257] = {
	"---------------i------------------------------------------------"
	"----------------------------------------------------------------"
	"----------------------------------------------------------------"
	"------------i---------------------------------------------------",
	"--------iiiiiiii----iiii--------iii-----------------------------"
	"iii-i---------------------------iiii----------------------------"
	"----------------------------------------------------------------"
	"--------------ii---------------i--------------------------------",
}; // clang-format on

#endif
