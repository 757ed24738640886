/* periods.bpf.c with another account in usage_ns: all that the scheduler has added to the tasks' sum_exec_runtime since
 * this was loaded. Tests hold it against the account of the quota, period by period. */
#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* By group; of its own tasks only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 12);
	__type(key, __u64);
	__type(value, __u64);
} charged SEC(".maps");

SEC("tp_btf/sched_stat_runtime")
int BPF_PROG(charge, struct task_struct *task, u64 runtime_ns)
{
	__u64 id = BPF_CORE_READ(task, sched_task_group, css.cgroup, kn, id);
	__u64 *sum = bpf_map_lookup_elem(&charged, &id);
	__u64 none = 0;

	if (!sum) {
		bpf_map_update_elem(&charged, &id, &none, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&charged, &id);
	}
	if (sum)
		__sync_fetch_and_add(sum, runtime_ns);
	return 0;
}

static __always_inline __u64 charged_to_tasks(__u64 id)
{
	__u64 *sum = bpf_map_lookup_elem(&charged, &id);

	return sum ? *sum : 0;
}

#define USAGE_NS(id, sums) charged_to_tasks(id)
#include "../periods.bpf.c"
