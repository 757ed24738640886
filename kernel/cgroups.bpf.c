/* The table of control groups: CPU and memory of every group below one directory, in one read.
 *
 * An iterator (Documentation/bpf/bpf_iterators.rst) over cgroups: each read of a descriptor that BPF_ITER_CREATE made
 * runs `group` for all of them, in the reader's own time, and returns the rows. Nothing is attached to any hot path.
 */
#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "records.h"

char LICENSE[] SEC("license") = "GPL";

/* Set by the loader: constants to the verifier, which so knows the end of the loop over CPUs. */
const volatile __u32 cpu_count = 1;
const volatile __u64 page_bytes = 4096;

#define UNLIMITED (-1)
#define RUNTIME_INF (~0ULL)

/* Of version 1; a kernel may be built without it. */
struct mem_cgroup___v1 {
	int oom_kill_disable;
	int under_oom;
} __attribute__((preserve_access_index));

/* Lets plain loads follow a pointer that the verifier knows nothing of, at a tenth of the price of a helper's call. */
extern void *bpf_rdonly_cast(const void *pointer, __u32 type) __ksym;

#define CAST(type, pointer) ((const type *)bpf_rdonly_cast(pointer, bpf_core_type_id_kernel(type)))
#define CONTAINER(type, member, pointer) CAST(type, (const void *)(pointer) - bpf_core_field_offset(type, member))

/* An element of an array in a structure, at an index that differs between kernels: too much for one relocation. */
#define ELEMENT(type, field, base, index)                                                                              \
	({                                                                                                             \
		typeof(((type *)0)->field[0]) _value;                                                                  \
		const void *_array = (const void *)(base) + bpf_core_field_offset(type, field);                        \
		bpf_probe_read_kernel(&_value, sizeof(_value), _array + (index) * sizeof(_value));                     \
		_value;                                                                                                \
	})

static __always_inline __u64 usage_of(const struct task_group *tg)
{
	struct sched_entity **of_cpu = tg->se;
	__u64 sum = 0;

	for (__u32 cpu = 0; of_cpu && cpu < cpu_count; cpu++) {
		struct sched_entity *se = NULL;

		if (!bpf_probe_read_kernel(&se, sizeof(se), &of_cpu[cpu]) && se)
			sum += CAST(struct sched_entity, se)->sum_exec_runtime;
	}
	return sum;
}

static __always_inline void read_cpu(struct cgroup_subsys_state *css, struct tb_group *row)
{
	const struct task_group *tg = CONTAINER(struct task_group, css, css);
	__u64 quota = tg->cfs_bandwidth.quota;

	row->flags |= TB_HAS_CPU;
	row->usage_ns = usage_of(tg);
	row->quota_ns = quota == RUNTIME_INF ? UNLIMITED : (__s64)quota;
	row->period_ns = tg->cfs_bandwidth.period;
	row->nr_periods = tg->cfs_bandwidth.nr_periods;
	row->nr_throttled = tg->cfs_bandwidth.nr_throttled;
	row->throttled_ns = tg->cfs_bandwidth.throttled_time;
	if (tg->cfs_bandwidth.period_active)
		row->boundary_ns = tg->cfs_bandwidth.period_timer.node.expires;
}

/* Pages as bytes; the kernel's "no limit" is the most pages that fit into a long. */
static __always_inline __s64 bytes_of(unsigned long pages)
{
	return pages >= (__u64)0x7fffffffffffffff / page_bytes ? UNLIMITED : (__s64)(pages * page_bytes);
}

static __always_inline void read_memory(struct cgroup_subsys_state *css, struct tb_group *row)
{
	const struct mem_cgroup *memory = CONTAINER(struct mem_cgroup, css, css);
	const struct mem_cgroup___v1 *of_v1 = (const void *)memory;
	const int kill = bpf_core_enum_value(enum memcg_memory_event, MEMCG_OOM_KILL);

	row->flags |= TB_HAS_MEMORY;
	row->memory_bytes = memory->memory.usage.counter * page_bytes;
	row->limit_bytes = bytes_of(memory->memory.max);
	row->high_bytes = bytes_of(memory->memory.high);
	row->local_kills = ELEMENT(struct mem_cgroup, memory_events_local, memory, kill).counter;
	row->kills = ELEMENT(struct mem_cgroup, memory_events, memory, kill).counter;
	if (bpf_core_field_exists(of_v1->under_oom) && of_v1->under_oom)
		row->flags |= TB_UNDER_OOM;
	if (bpf_core_field_exists(of_v1->oom_kill_disable) && of_v1->oom_kill_disable)
		row->flags |= TB_KILL_DISABLED;
}

SEC("iter/cgroup")
int group(struct bpf_iter__cgroup *ctx)
{
	struct cgroup *cgroup = ctx->cgroup;
	struct cgroup_subsys_state *cpu, *memory;
	struct tb_group row = {};

	if (!cgroup) /* the call after the last one */
		return 0;
	row.id = cgroup->kn->id;
	row.level = cgroup->level;
	cpu = ELEMENT(struct cgroup, subsys, cgroup, bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id));
	memory = ELEMENT(struct cgroup, subsys, cgroup, bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id));
	if (cpu)
		read_cpu(cpu, &row);
	if (memory)
		read_memory(memory, &row);
	bpf_seq_write(ctx->meta->seq, &row, sizeof(row));
	return 0;
}
