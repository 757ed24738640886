/* MLTCP on Reno: connections of different training jobs drift apart until their sending phases meet no more. Loss, slow
 * start and undo are Reno's, and so is everything for connections without iterations. */
#define TB_NAME "mltcp"
#include "mltcp.h"

#define TB_HALF 512
#ifndef TB_THRESHOLD
#define TB_THRESHOLD(sk) tcp_reno_ssthresh(sk) /* test/skipped.bpf.c has another one */
#endif

extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

SEC("struct_ops/mltcp_cong_avoid")
void BPF_PROG(mltcp_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, scaled(sk, acked));
}

SEC("struct_ops/mltcp_cwnd_event")
void BPF_PROG(mltcp_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	if (event == CA_EVENT_TX_START)
		sends_again(sk);
}

SEC("struct_ops/mltcp_ssthresh")
__u32 BPF_PROG(mltcp_ssthresh, struct sock *sk)
{
	return TB_THRESHOLD(sk);
}

SEC("struct_ops/mltcp_in_ack_event")
void BPF_PROG(mltcp_in_ack_event, struct sock *sk, __u32 flags)
{
	note_what_is_left(sk);
	mend_skipped(sk, TB_HALF);
}

SEC("struct_ops/mltcp_undo_cwnd")
__u32 BPF_PROG(mltcp_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

/* One of the two is loaded: this for who may choose any congestion control, the other for everybody. */
SEC(".struct_ops")
struct tcp_congestion_ops mltcp = {
	.ssthresh = (void *)mltcp_ssthresh,
	.undo_cwnd = (void *)mltcp_undo_cwnd,
	.cong_avoid = (void *)mltcp_cong_avoid,
	.cwnd_event = (void *)mltcp_cwnd_event,
	.in_ack_event = (void *)mltcp_in_ack_event,
	.name = TB_NAME_PLACE,
};

SEC(".struct_ops")
struct tcp_congestion_ops mltcp_all = {
	.ssthresh = (void *)mltcp_ssthresh,
	.undo_cwnd = (void *)mltcp_undo_cwnd,
	.cong_avoid = (void *)mltcp_cong_avoid,
	.cwnd_event = (void *)mltcp_cwnd_event,
	.in_ack_event = (void *)mltcp_in_ack_event,
	.flags = TB_NON_RESTRICTED,
	.name = TB_NAME_PLACE,
};
