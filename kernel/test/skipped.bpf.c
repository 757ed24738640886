/* MLTCP where a kernel has skipped the program that computes a threshold: its answer is what lay on the stack. */
#define TB_THRESHOLD(sk) (bpf_get_prandom_u32() >> 2 | 1 << 22)
#include "../mltcp.bpf.c"
