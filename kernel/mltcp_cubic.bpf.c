/* MLTCP on CUBIC, for kernels whose CUBIC can be called from programs. */
#define TB_NAME "mltcp_cubic"
#include "mltcp.h"

#define TB_BETA 717 /* CUBIC's, of 1024 */

extern void cubictcp_init(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

SEC("struct_ops/mltcp_cubic_init")
void BPF_PROG(mltcp_cubic_init, struct sock *sk)
{
	cubictcp_init(sk);
}

SEC("struct_ops/mltcp_cubic_cong_avoid")
void BPF_PROG(mltcp_cubic_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	cubictcp_cong_avoid(sk, ack, scaled(sk, acked));
}

SEC("struct_ops/mltcp_cubic_cwnd_event")
void BPF_PROG(mltcp_cubic_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	if (event == CA_EVENT_TX_START)
		sends_again(sk);
	cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops/mltcp_cubic_ssthresh")
__u32 BPF_PROG(mltcp_cubic_ssthresh, struct sock *sk)
{
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops/mltcp_cubic_set_state")
void BPF_PROG(mltcp_cubic_set_state, struct sock *sk, __u8 state)
{
	cubictcp_state(sk, state);
}

SEC("struct_ops/mltcp_cubic_acked")
void BPF_PROG(mltcp_cubic_acked, struct sock *sk, const struct ack_sample *sample)
{
	cubictcp_acked(sk, sample);
}

SEC("struct_ops/mltcp_cubic_in_ack_event")
void BPF_PROG(mltcp_cubic_in_ack_event, struct sock *sk, __u32 flags)
{
	note_what_is_left(sk);
	mend_skipped(sk, TB_BETA);
}

SEC("struct_ops/mltcp_cubic_undo_cwnd")
__u32 BPF_PROG(mltcp_cubic_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

/* One of the two is loaded: this for who may choose any congestion control, the other for everybody. */
SEC(".struct_ops")
struct tcp_congestion_ops mltcp_cubic = {
	.init = (void *)mltcp_cubic_init,
	.ssthresh = (void *)mltcp_cubic_ssthresh,
	.undo_cwnd = (void *)mltcp_cubic_undo_cwnd,
	.cong_avoid = (void *)mltcp_cubic_cong_avoid,
	.cwnd_event = (void *)mltcp_cubic_cwnd_event,
	.in_ack_event = (void *)mltcp_cubic_in_ack_event,
	.set_state = (void *)mltcp_cubic_set_state,
	.pkts_acked = (void *)mltcp_cubic_acked,
	.name = TB_NAME_PLACE,
};

SEC(".struct_ops")
struct tcp_congestion_ops mltcp_cubic_all = {
	.init = (void *)mltcp_cubic_init,
	.ssthresh = (void *)mltcp_cubic_ssthresh,
	.undo_cwnd = (void *)mltcp_cubic_undo_cwnd,
	.cong_avoid = (void *)mltcp_cubic_cong_avoid,
	.cwnd_event = (void *)mltcp_cubic_cwnd_event,
	.in_ack_event = (void *)mltcp_cubic_in_ack_event,
	.set_state = (void *)mltcp_cubic_set_state,
	.pkts_acked = (void *)mltcp_cubic_acked,
	.flags = TB_NON_RESTRICTED,
	.name = TB_NAME_PLACE,
};
