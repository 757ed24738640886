/* iteration.h as a library, for tests/support/mltcp_iteration.py. */
#include <linux/types.h>
#include <stdbool.h>

#include "../iteration.h"

/* As mltcp.h does at the end of a pause. */
bool resume(struct tb_flow *flow, __u64 now_ns, __u64 pause_ns, __u64 acked_bytes)
{
	bool begins = tb_iteration_begins(flow, now_ns, pause_ns, acked_bytes);

	if (begins)
		tb_begin_iteration(flow, now_ns, acked_bytes);
	return begins;
}

/* As mltcp.h does at an acknowledgement that is not the last. */
void leave(struct tb_flow *flow, __u64 acked_bytes)
{
	flow->left_bytes = acked_bytes;
}

__u64 iteration_bytes(const struct tb_flow *flow)
{
	return tb_iteration_bytes(flow);
}

__u32 scaled(struct tb_flow *flow, __u32 acked, __u64 acked_bytes)
{
	const struct tb_congestion_constants usual = TB_CONGESTION_CONSTANTS;

	return tb_scaled(flow, usual.slope, usual.intercept, acked, acked_bytes);
}

/* With other constants than the loader's. */
__u32 scaled_by(struct tb_flow *flow, __u32 slope, __u32 intercept, __u32 acked, __u64 acked_bytes)
{
	return tb_scaled(flow, slope, intercept, acked, acked_bytes);
}

unsigned long flow_bytes(void)
{
	return sizeof(struct tb_flow);
}
