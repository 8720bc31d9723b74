# SPDX-License-Identifier: Apache-2.0
"""libpcap: loaded on demand, to read a capture file or compile a filter."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from otel_nfprobe.base.errors import UsageError

if TYPE_CHECKING:
    from cffi import FFI

_LIBRARIES = ("libpcap.so.0.8", "libpcap.so.1", "libpcap.so")
_DECLARATIONS = """
typedef struct pcap pcap_t;
struct bpf_insn { uint16_t code; uint8_t jt; uint8_t jf; uint32_t k; };
struct bpf_program { unsigned int bf_len; struct bpf_insn *bf_insns; };
struct pcap_pkthdr { long seconds; long fraction; uint32_t captured; uint32_t length; };
char *pcap_geterr(pcap_t *);
void pcap_close(pcap_t *);

pcap_t *pcap_open_dead(int, int);
int pcap_compile(pcap_t *, struct bpf_program *, const char *, int, uint32_t);
void pcap_freecode(struct bpf_program *);
int pcap_offline_filter(const struct bpf_program *, const void *, const uint8_t *);

pcap_t *pcap_open_offline_with_tstamp_precision(const char *, unsigned int, char *);
int pcap_datalink(pcap_t *);
int pcap_next_ex(pcap_t *, struct pcap_pkthdr **, const uint8_t **);
"""


@cache
def load_libpcap(user: str) -> tuple[FFI, Any]:
    """Returns its declarations and the library.

    Args:
        user: who needs it, for the error message.

    Raises:
        UsageError: it is not installed.
    """
    from cffi import FFI  # it takes long to load

    declared = FFI()
    declared.cdef(_DECLARATIONS)
    for name in _LIBRARIES:
        try:
            return declared, declared.dlopen(name)
        except OSError:
            continue
    raise UsageError(f"{user} needs libpcap, which is not installed.", "apt-get install libpcap0.8")


def read_text(declared: FFI, said: Any) -> str:
    """Returns a message of libpcap without its full stop."""
    text = declared.string(said)
    return (text if isinstance(text, str) else text.decode(errors="replace")).rstrip(".")
