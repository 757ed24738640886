/* The moment in which a group has used up its quota: a bell for the agent, which then reads the table.
 *
 * A task of a throttled group leaves its CPU: from Linux 6.18 on by itself, on its way back to user space, before that
 * with all of its group. Either way the scheduler switches from it, and the tracepoint of the switch is one of the few
 * hooks that kernels without programs on functions offer. A group rings once a period and quota.
 */
#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "constants.h"
#include "pointers.h"
#include "records.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct tb_constants constants = TB_CONSTANTS;

#define MOST_LEVELS 8

struct rung {
	__s32 nr_periods;
	__u32 padding; /* the verifier wants every byte of a map's value set */
	__u64 quota;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct rung);
} rung SEC(".maps");

/* Its descriptor can be waited for; what is in it nobody reads. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12);
} bell SEC(".maps");

static __always_inline void ring(const struct cfs_bandwidth *bandwidth)
{
	struct rung now = {.nr_periods = bandwidth->nr_periods, .quota = bandwidth->quota}, *before;
	__u64 group = (__u64)bandwidth;

	before = bpf_map_lookup_elem(&rung, &group);
	if (before && before->nr_periods == now.nr_periods && before->quota == now.quota)
		return;
	bpf_map_update_elem(&rung, &group, &now, BPF_ANY);
	bpf_ringbuf_output(&bell, &group, sizeof(group), BPF_RB_FORCE_WAKEUP); /* full: it has rung */
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switched, bool preempted, struct task_struct *from, struct task_struct *to)
{
	struct task_group *group = from->sched_task_group;

	for (int level = 0; group && level < MOST_LEVELS; level++) {
		const struct cfs_bandwidth *bandwidth = &group->cfs_bandwidth;

		if (bandwidth->quota != RUNTIME_INF && is_throttled(bandwidth))
			ring(bandwidth);
		group = group->parent;
	}
	return 0;
}
