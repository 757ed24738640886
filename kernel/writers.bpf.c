/* Who wrote a group's CPU quota or period last: process, command and control group, looked up by the agent where it finds
 * a quota that is not its own.
 *
 * Taken when the write has succeeded (fexit), while the writer is still in the system call: it may be gone, and its group
 * too, when the agent looks. A write by the agent itself deletes the group's entry: what is there was written since. One
 * entry a group and not a ring buffer: only the last write is in force, and a process that writes in a loop neither
 * displaces other groups' entries nor wakes the agent.
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

/* By group written to; of more groups than there is room for, those written to least recently are forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct tb_writer);
} writers SEC(".maps");

/* Too large for a program's stack. One for each function: a task in one of them may be preempted by a task in another,
 * while a second call of the same program on the same CPU is left out by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, struct tb_writer);
} drafts SEC(".maps");

/* Linux 6.15 renamed it. */
struct kernfs_node___before_6_15 {
	struct kernfs_node *parent;
} __attribute__((preserve_access_index));

static __always_inline struct kernfs_node *parent_of(struct kernfs_node *node)
{
	struct kernfs_node___before_6_15 *older = (void *)node;

	if (bpf_core_field_exists(older->parent))
		return BPF_CORE_READ(older, parent);
	return BPF_CORE_READ(node, __parent);
}

/* The agent counts processes as its own namespace does. */
static __always_inline bool is_agent(void)
{
	struct bpf_pidns_info seen = {};

	return !bpf_get_ns_current_pid_tgid(constants.pidns_dev, constants.pidns_ino, &seen, sizeof(seen)) &&
	       seen.tgid == constants.agent_pid;
}

/* The cgroup of version 2, which systemd manages; of a task in its root: the cgroup of the cpu controller. */
static __always_inline struct kernfs_node *group_of(struct task_struct *task)
{
	struct css_set *groups = BPF_CORE_READ(task, cgroups);
	struct kernfs_node *unified = BPF_CORE_READ(groups, dfl_cgrp, kn);
	struct cgroup_subsys_state *cpu;

	if (parent_of(unified))
		return unified;
	cpu = ELEMENT(struct css_set, subsys, groups, bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id));
	return BPF_CORE_READ(cpu, cgroup, kn);
}

static __always_inline void describe(struct tb_writer *writer)
{
	struct task_struct *leader = BPF_CORE_READ((struct task_struct *)bpf_get_current_task(), group_leader);
	struct kernfs_node *node = group_of(leader), *parent;

	writer->pid = bpf_get_current_pid_tgid() >> 32;
	bpf_probe_read_kernel_str(writer->comm, sizeof(writer->comm), leader->comm);
	writer->levels = 0;
	for (__u32 level = 0; level < TB_WRITER_LEVELS; level++) {
		parent = parent_of(node);
		if (!parent)
			return;
		bpf_probe_read_kernel_str(writer->names[level], TB_NAME_BYTES, BPF_CORE_READ(node, name));
		writer->levels = level + 1;
		node = parent;
	}
	if (parent_of(node))
		writer->levels = TB_WRITER_LEVELS + 1;
}

static __always_inline void note(struct kernfs_node *group, __u32 function)
{
	__u64 id = BPF_CORE_READ(group, id);
	struct tb_writer *draft;

	if (is_agent()) {
		bpf_map_delete_elem(&writers, &id);
		return;
	}
	draft = bpf_map_lookup_elem(&drafts, &function);
	if (!draft)
		return;
	describe(draft);
	bpf_map_update_elem(&writers, &id, draft, BPF_ANY);
}

/* Version 2: quota and period in one file, whose directory is the group. */
SEC("fexit/cpu_max_write")
int BPF_PROG(max_written, struct kernfs_open_file *file, char *text, size_t bytes, loff_t offset, ssize_t result)
{
	if (result >= 0)
		note(parent_of(BPF_CORE_READ(file, kn)), 0);
	return 0;
}

/* Version 1; the functions have other names in Linux 6.18 than in 6.12. */
static __always_inline void note_version_1(struct cgroup_subsys_state *css, int result, __u32 function)
{
	if (!result)
		note(BPF_CORE_READ(css, cgroup, kn), function);
}

SEC("fexit/cpu_cfs_quota_write_s64")
int BPF_PROG(cfs_quota_written, struct cgroup_subsys_state *css, struct cftype *type, __s64 quota_us, int result)
{
	note_version_1(css, result, 1);
	return 0;
}

SEC("fexit/cpu_quota_write_s64")
int BPF_PROG(quota_written, struct cgroup_subsys_state *css, struct cftype *type, __s64 quota_us, int result)
{
	note_version_1(css, result, 1);
	return 0;
}

SEC("fexit/cpu_cfs_period_write_u64")
int BPF_PROG(cfs_period_written, struct cgroup_subsys_state *css, struct cftype *type, __u64 period_us, int result)
{
	note_version_1(css, result, 2);
	return 0;
}

SEC("fexit/cpu_period_write_u64")
int BPF_PROG(period_written, struct cgroup_subsys_state *css, struct cftype *type, __u64 period_us, int result)
{
	note_version_1(css, result, 2);
	return 0;
}
