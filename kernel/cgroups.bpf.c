/* The table of control groups: CPU and memory of every group below one directory, in one read.
 *
 * An iterator (Documentation/bpf/bpf_iterators.rst) over cgroups: each read of a descriptor that BPF_ITER_CREATE made
 * runs `group` for all of them, in the reader's own time. Nothing is attached to any hot path. The rows go into a map
 * that the reader has in its memory: what a read itself can return is 32 KiB, some 300 groups, and this iterator cannot
 * be continued by a second read.
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

/* Of version 1; a kernel may be built without it. */
struct mem_cgroup___v1 {
	int oom_kill_disable;
	int under_oom;
} __attribute__((preserve_access_index));

static __always_inline __u64 usage_of(const struct task_group *tg)
{
	struct sched_entity **of_cpu = tg->se;
	__u64 sum = 0;

	for (__u32 cpu = 0; of_cpu && cpu < constants.cpu_count; cpu++) {
		struct sched_entity *se = NULL;

		if (!bpf_probe_read_kernel(&se, sizeof(se), &of_cpu[cpu]) && se)
			sum += CAST(struct sched_entity, se)->sum_exec_runtime;
	}
	return sum;
}

static __always_inline __s64 quota_of(const struct cfs_bandwidth *bandwidth)
{
	__u64 quota_us = bandwidth->quota / 1000, period_us = (__u64)bandwidth->period / 1000;

	if (bandwidth->quota == RUNTIME_INF)
		return TB_UNLIMITED;
	return period_us == TB_PERIOD_US || !period_us ? quota_us : quota_us * TB_PERIOD_US / period_us;
}

static __always_inline void read_cpu(struct cgroup_subsys_state *css, struct tb_group *row)
{
	const struct task_group *tg = CONTAINER(struct task_group, css, css);

	row->flags |= TB_HAS_CPU;
	row->usage_us = usage_of(tg) / 1000;
	row->quota_us = quota_of(&tg->cfs_bandwidth);
	row->nr_periods = tg->cfs_bandwidth.nr_periods;
	row->nr_throttled = tg->cfs_bandwidth.nr_throttled;
	row->throttled_us = tg->cfs_bandwidth.throttled_time / 1000;
	if (is_throttled(&tg->cfs_bandwidth))
		row->flags |= TB_THROTTLED;
	if (tg->cfs_bandwidth.period_active)
		row->boundary_ns = tg->cfs_bandwidth.period_timer.node.expires;
}

static __always_inline void read_memory(struct cgroup_subsys_state *css, struct tb_group *row)
{
	const struct mem_cgroup *memory = CONTAINER(struct mem_cgroup, css, css);
	const struct mem_cgroup___v1 *of_v1 = (const void *)memory;
	const int kill = bpf_core_enum_value(enum memcg_memory_event, MEMCG_OOM_KILL);

	row->flags |= TB_HAS_MEMORY;
	row->memory_bytes = memory->memory.usage.counter * constants.page_bytes;
	row->limit_bytes = bytes_of(memory->memory.max, constants.page_bytes);
	row->high_bytes = bytes_of(memory->memory.high, constants.page_bytes);
	row->local_kills = ELEMENT(struct mem_cgroup, memory_events_local, memory, kill).counter;
	row->kills = ELEMENT(struct mem_cgroup, memory_events, memory, kill).counter;
	if (bpf_core_field_exists(of_v1->under_oom) && of_v1->under_oom)
		row->flags |= TB_UNDER_OOM;
	if (bpf_core_field_exists(of_v1->oom_kill_disable) && of_v1->oom_kill_disable)
		row->flags |= TB_KILL_DISABLED;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TB_TABLE_ROWS);
	__type(key, __u32);
	__type(value, struct tb_group);
} rows SEC(".maps");

/* So far, in the read under way. */
__u32 filled;

static __always_inline void fill(struct cgroup *cgroup, struct tb_group *row)
{
	struct cgroup_subsys_state *cpu, *memory;

	__builtin_memset(row, 0, sizeof(*row));
	row->id = cgroup->kn->id;
	row->level = cgroup->level;
	cpu = ELEMENT(struct cgroup, subsys, cgroup, bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id));
	memory = ELEMENT(struct cgroup, subsys, cgroup, bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id));
	if (cpu)
		read_cpu(cpu, row);
	if (memory)
		read_memory(memory, row);
}

SEC("iter/cgroup")
int group(struct bpf_iter__cgroup *ctx)
{
	struct cgroup *cgroup = ctx->cgroup;
	struct tb_group *row;
	__u64 count;
	__u32 index;

	if (!ctx->meta->seq_num)
		filled = 0;
	if (!cgroup) { /* the call after the last one */
		count = filled;
		bpf_seq_write(ctx->meta->seq, &count, sizeof(count));
		return 0;
	}
	index = filled++;
	row = bpf_map_lookup_elem(&rows, &index);
	if (row)
		fill(cgroup, row);
	return 0;
}
