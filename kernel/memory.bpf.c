/* Memory: the moment before the kernel chooses a victim in a group that is at its limit, and the victim.
 *
 * Neither can be prevented from here: a program must not sleep, and cannot write memory.max.
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

/* Records that found no room. */
__u64 lost;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} records SEC(".maps");

static __always_inline void give(struct tb_oom *record, struct mem_cgroup *memory)
{
	record->time_ns = bpf_ktime_get_ns();
	record->id = BPF_CORE_READ(memory, css.cgroup, kn, id);
	record->memory_bytes = BPF_CORE_READ(memory, memory.usage.counter) * constants.page_bytes;
	record->limit_bytes = bytes_of(BPF_CORE_READ(memory, memory.max), constants.page_bytes);
	if (bpf_ringbuf_output(&records, record, sizeof(*record), 0))
		__sync_fetch_and_add(&lost, 1);
}

SEC("fentry/mem_cgroup_out_of_memory")
int BPF_PROG(decision, struct mem_cgroup *memory)
{
	struct tb_oom record = {.kind = TB_OOM_DECISION};

	give(&record, memory);
	return 0;
}

/* Of its own group: that of the decision is the same or above. Before Linux 6.8 the argument was a number, and the
 * verifier refuses this. */
SEC("tp_btf/mark_victim")
int BPF_PROG(victim, struct task_struct *task)
{
	struct tb_oom record = {.kind = TB_OOM_VICTIM, .pid = task->tgid};
	struct css_set *groups = task->cgroups;
	struct cgroup_subsys_state *css =
		ELEMENT(struct css_set, subsys, groups, bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id));

	give(&record, (void *)css - bpf_core_field_offset(struct mem_cgroup, css));
	return 0;
}
