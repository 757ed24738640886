/* Where an iteration of a training job begins, and how much faster or slower than usual a connection's window grows in
 * it (MLTCP, HotNets 2024). Plain arithmetic, without the kernel: test/iteration.c makes a library of it.
 *
 *	r = min(1, bytes of this iteration / bytes of an iteration)        F(r) = slope * r + intercept
 *
 * An iteration begins where a connection sends again after a pause of at least half of the longest lately: shorter ones
 * lie between the tensors of one iteration. While something is left to send no pause is the program's: the receiver or
 * a busy machine makes it. An iteration's bytes are the median of the last three, so that neither an odd one nor a
 * changed batch size matters for long. Until three are known F = 1, and again beyond twice those bytes: a connection
 * without a period is Reno. */
#ifndef TB_ITERATION_H
#define TB_ITERATION_H

#include "constants.h"

#define TB_ONE 1024u /* the unit of slope, intercept and shares */
#define TB_LEAST_BYTES 65536ull /* of an iteration: handshakes, rendezvous and barriers are none */
#define TB_LEAST_PAUSE_NS 10000000ull
#define TB_LEAST_WINDOW_NS 2000000000ull
#define TB_MOST_WINDOW_NS 10000000000ull

/* What is known of one connection. */
struct tb_flow {
	__u64 began_ns;          /* of the iteration under way; 0: none has begun yet */
	__u64 began_bytes;       /* acknowledged before it */
	__u64 left_bytes;        /* acknowledged when last something was left to send */
	__u64 bytes[3];          /* of the last iterations, the latest first */
	__u64 period_ns;         /* of the last one */
	__u64 longest_ns;        /* pause in this window */
	__u64 longest_before_ns; /* in the window before */
	__u64 window_began_ns;
	__u32 iterations;        /* whole ones */
	__u32 remainder;         /* of what was scaled, below TB_ONE */
	__u32 retransmissions;   /* before the iteration under way */
	__u32 unused;
};

static __always_inline __u64 tb_larger(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/* The longest pause is that of the last one to two windows, of some iterations each. */
static __always_inline void tb_forget_pauses(struct tb_flow *flow, __u64 now_ns)
{
	__u64 window_ns = tb_larger(4 * tb_larger(flow->longest_ns, flow->longest_before_ns), TB_LEAST_WINDOW_NS);

	if (window_ns > TB_MOST_WINDOW_NS) /* a rendezvous */
		window_ns = TB_MOST_WINDOW_NS;
	window_ns = tb_larger(window_ns, 3 * flow->period_ns);
	if (now_ns - flow->window_began_ns <= window_ns)
		return;
	flow->longest_before_ns = flow->longest_ns;
	flow->longest_ns = 0;
	flow->window_began_ns = now_ns;
}

/* Whether an iteration begins with what is sent now, after a pause; all sent before is acknowledged. */
static __always_inline bool tb_iteration_begins(struct tb_flow *flow, __u64 now_ns, __u64 pause_ns, __u64 acked_bytes)
{
	__u64 longest_ns;

	if (pause_ns < TB_LEAST_PAUSE_NS || acked_bytes - flow->began_bytes < TB_LEAST_BYTES)
		return false;
	if (acked_bytes == flow->left_bytes)
		return false;
	tb_forget_pauses(flow, now_ns);
	longest_ns = tb_larger(flow->longest_ns, flow->longest_before_ns);
	flow->longest_ns = tb_larger(flow->longest_ns, pause_ns);
	return 2 * pause_ns >= longest_ns;
}

/* Close the iteration under way and begin the next; what came before the first pause was none. */
static __always_inline void tb_begin_iteration(struct tb_flow *flow, __u64 now_ns, __u64 acked_bytes)
{
	if (flow->began_ns) {
		flow->bytes[2] = flow->bytes[1];
		flow->bytes[1] = flow->bytes[0];
		flow->bytes[0] = acked_bytes - flow->began_bytes;
		flow->period_ns = now_ns - flow->began_ns;
		if (flow->iterations < ~0u)
			flow->iterations++;
	}
	flow->began_ns = now_ns;
	flow->began_bytes = acked_bytes;
}

/* Bytes of an iteration; 0: not known yet. */
static __always_inline __u64 tb_iteration_bytes(const struct tb_flow *flow)
{
	__u64 a = flow->bytes[0], b = flow->bytes[1], c = flow->bytes[2];
	__u64 low = a < b ? a : b, high = a < b ? b : a;

	if (flow->iterations < 3)
		return 0;
	return c < low ? low : c > high ? high : c;
}

/* Segments that the window grows by for `acked` ones; the rest is carried over. */
static __always_inline __u32 tb_scaled(struct tb_flow *flow, __u32 slope, __u32 intercept, __u32 acked,
				       __u64 acked_bytes)
{
	__u64 whole = tb_iteration_bytes(flow), sent = acked_bytes - flow->began_bytes;
	__u64 share, units;

	if (!whole || sent > 2 * whole)
		return acked;
	share = sent >= whole ? TB_ONE : sent * TB_ONE / whole;
	units = (__u64)acked * (slope * share / TB_ONE + intercept) + flow->remainder;
	flow->remainder = units % TB_ONE;
	return units / TB_ONE;
}

#endif
