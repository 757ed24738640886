/* What MLTCP adds to a congestion control of the kernel's: its connections' iterations (iteration.h), and records of
 * them. A program that includes this defines TB_NAME, by which its records call it. */
#ifndef TB_MLTCP_H
#define TB_MLTCP_H

#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "iteration.h"
#include "records.h"

#define TB_NON_RESTRICTED 1 /* TCP_CONG_NON_RESTRICTED: whoever has a socket may choose it */
#define TB_NS_PER_S 1000000000ull
#define TB_FIRST_WINDOW 10 /* TCP_INIT_CWND */

char LICENSE[] SEC("license") = "GPL";

const volatile struct tb_congestion_constants constants = TB_CONGESTION_CONSTANTS;
extern int CONFIG_HZ __kconfig;

/* Of its own, so that the private room of a socket's congestion control stays the base's. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tb_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tb_congestion_counters);
} counters SEC(".maps");

static __always_inline struct tb_congestion_counters *counted(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&counters, &zero);
}

static __always_inline void copy_address(__u8 *to, struct sock *sk, bool destination)
{
	struct sock_common *common = &sk->__sk_common;
	__u32 address = destination ? common->skc_daddr : common->skc_rcv_saddr;

	if (common->skc_family == 2) { /* AF_INET, as an IPv6 address */
		to[10] = to[11] = 0xff;
		__builtin_memcpy(to + 12, &address, sizeof(address));
	} else if (destination) {
		bpf_core_read(to, 16, &common->skc_v6_daddr);
	} else {
		bpf_core_read(to, 16, &common->skc_v6_rcv_saddr);
	}
}

static __always_inline void record_iteration(struct sock *sk, struct tcp_sock *tp, const struct tb_flow *flow,
					     __u64 now_ns, __u64 pause_ns)
{
	struct tb_iteration *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	struct tb_congestion_counters *counter = counted();

	if (counter && !record)
		counter->lost++;
	if (!record)
		return;
	__builtin_memset(record, 0, sizeof(*record));
	record->time_ns = flow->began_ns;
	record->period_ns = now_ns - flow->began_ns;
	record->sending_ns = record->period_ns > pause_ns ? record->period_ns - pause_ns : 0;
	record->sent_bytes = tp->bytes_acked - flow->began_bytes;
	record->retransmissions = tp->total_retrans - flow->retransmissions;
	if (bpf_core_field_exists(sk->sk_cgrp_data.cgroup))
		record->cgroup_id = BPF_CORE_READ(sk, sk_cgrp_data.cgroup, kn, id);
	copy_address(record->source, sk, false);
	copy_address(record->destination, sk, true);
	record->source_port = sk->__sk_common.skc_num;
	record->destination_port = bpf_ntohs(sk->__sk_common.skc_dport);
	__builtin_memcpy(record->congestion_control, TB_NAME, sizeof(TB_NAME));
	bpf_ringbuf_submit(record, 0);
}

/* The socket sends, and nothing of what it had sent before is on its way: all of it is acknowledged, or given up for lost.
 * After a retransmission timeout the wait was the link's, and the iteration goes on. */
static __always_inline void sends_again(struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct tb_flow *flow = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	__u32 jiffies = (__u32)bpf_jiffies64() - tp->lsndtime;
	__u64 pause_ns = jiffies * TB_NS_PER_S / CONFIG_HZ, now_ns = bpf_ktime_get_ns();
	struct tb_congestion_counters *counter = counted();

	if (!flow || tp->packets_out || !tb_iteration_begins(flow, now_ns, pause_ns, tp->bytes_acked))
		return;
	if (flow->began_ns) {
		record_iteration(sk, tp, flow, now_ns, pause_ns);
		if (counter) {
			counter->iterations++;
			counter->flows += !flow->iterations;
		}
	}
	tb_begin_iteration(flow, now_ns, tp->bytes_acked);
	flow->retransmissions = tp->total_retrans;
}

/* At each acknowledgement: what is written and not acknowledged, or waits for room in the buffer, is left to send. */
static __always_inline void note_what_is_left(struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct tb_flow *flow;

	if (tp->snd_una == tp->write_seq && !sk->sk_write_pending)
		return;
	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (flow)
		flow->left_bytes = tp->bytes_acked;
}

static __always_inline bool plausible(__u32 segments, __u32 most)
{
	return segments >= 2 && segments <= (most > 2 ? most : 2);
}

/* A kernel may skip a program: before 6.1 one that is interrupted by itself, others for some tasks. What it takes for the
 * program's answer is then what lay on the stack, and a window or threshold of millions drops most of what is sent until
 * it is halved down. The next acknowledgement puts that right:
 *	- the threshold of a reduction is at most the window before it; `share` of that, in units of 1/1024, is the base's
 *	- no window grows beyond twice of what the peer has ever allowed, as it grows only while it is used up
 * What is no reduction of the base's is left alone (undo_marker, tcp_simple_retransmit()). */
static __always_inline void mend_skipped(struct sock *sk, __u32 share)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	__u8 state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	__u32 before = tp->prior_cwnd, most = tp->max_window / (tp->mss_cache ?: 1);
	__u32 reduced = plausible(before * share / TB_ONE, before) ? before * share / TB_ONE : 2;
	bool reduces = state == TCP_CA_CWR || (state > TCP_CA_CWR && tp->undo_marker);

	if (before > most + TB_FIRST_WINDOW)
		reduced = TB_FIRST_WINDOW;
	if (reduces && !plausible(tp->snd_ssthresh, before))
		tp->snd_ssthresh = reduced;
	if (tp->snd_cwnd > 2 * most + TB_FIRST_WINDOW)
		tp->snd_cwnd = reduced;
}

/* Segments that the window of this socket grows by for `acked` ones. Slow start is the base's. */
static __always_inline __u32 scaled(struct sock *sk, __u32 acked)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct tb_flow *flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	struct tb_congestion_counters *counter = counted();

	if (!flow || !tb_iteration_bytes(flow) || tp->snd_cwnd < tp->snd_ssthresh)
		return acked;
	if (counter)
		counter->scaled_acks++;
	return tb_scaled(flow, constants.slope, constants.intercept, acked, tp->bytes_acked);
}

#endif
