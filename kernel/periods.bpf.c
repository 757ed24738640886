/* CFS bandwidth periods: one record for each that ends, of every group that has a quota.
 *
 * A group's period timer (kernel/sched/fair.c, sched_cfs_period_timer) takes cfs_b->lock, asks hrtimer_forward how many
 * periods are over, refills the quota and hands it out. The record is made when hrtimer_forward returns: the lock is
 * held, so no CPU draws from the pool meanwhile; the number of periods is known; nothing is refilled yet. At the entry
 * of the timer's function instead, a CPU may draw a slice (5 ms) between the reading and the refill, and it would be
 * missing in this period's account and in the next one's.
 *
 * All groups with a quota, not only wanted ones: no other has the timer, none is missed in the first moments after it
 * was made, and the agent has to know the groups anyway. An idle group's timer stops: two records, then silence.
 */
#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "constants.h"
#include "records.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct tb_constants constants = TB_CONSTANTS;

#define RUNTIME_INF (~0ULL)
#define READINGS 4 /* of one CPU, until two agree */
#ifndef USAGE_NS /* test/ has another */
#define USAGE_NS(id, sums) ((sums)->usage_ns)
#endif

/* Records that found no room. */
__u64 lost;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

/* The group's account when its period began. */
struct start {
	__s64 drawn_ns;
	__u64 usage_ns;
	__u64 quota_ns;
	__u64 written; /* the quota, meanwhile */
};

/* By group. The least recently used one makes room: nobody has to tell of groups that are gone. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, __u64);
	__type(value, struct start);
} starts SEC(".maps");

/* The period timer whose function runs on this CPU, or 0. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} running SEC(".maps");

/* A group on one CPU. */
struct share {
	__s64 drawn_ns;     /* from the group's quota and not used; negative: overdrawn */
	__u64 usage_ns;
	__s64 behind_ns;
};

struct sums {
	struct cfs_rq **queues;
	struct sched_entity **entities;
	__s64 drawn_ns;
	__u64 usage_ns;
};

/* The scheduler charges what has run twice: to the group's quota, and to the group's own entity in the queue above. Both
 * at each tick, but where a task is woken in only one of the two queues, only there: so one account may be up to a tick
 * (1 to 10 ms) behind the other. By when each was last charged the difference is known, while the group is what the
 * queue above runs: where it is just being chosen, its task is set first, and its own time is that of its last turn. */
static __always_inline struct share read_share(struct cfs_rq *queue, struct sched_entity *entity)
{
	struct sched_entity *current = BPF_CORE_READ(queue, curr);
	struct share share = {
		.drawn_ns = BPF_CORE_READ(queue, runtime_remaining),
		.usage_ns = BPF_CORE_READ(entity, sum_exec_runtime),
	};

	if (current && BPF_CORE_READ(entity, cfs_rq, curr) == entity)
		share.behind_ns = BPF_CORE_READ(current, exec_start) - BPF_CORE_READ(entity, exec_start);
	return share;
}

static __always_inline bool same(const struct share *a, const struct share *b)
{
	return a->drawn_ns == b->drawn_ns && a->usage_ns == b->usage_ns && a->behind_ns == b->behind_ns;
}

/* Other CPUs go on meanwhile. */
static long add_cpu(__u32 cpu, struct sums *sums)
{
	struct sched_entity *entity = NULL;
	struct cfs_rq *queue = NULL;
	struct share share, again;

	bpf_probe_read_kernel(&queue, sizeof(queue), &sums->queues[cpu]);
	bpf_probe_read_kernel(&entity, sizeof(entity), &sums->entities[cpu]);
	if (!queue || !entity)
		return 0;
	share = read_share(queue, entity);
	for (int i = 1; i < READINGS; i++) {
		again = read_share(queue, entity);
		if (same(&share, &again))
			break;
		share = again;
	}
	sums->drawn_ns += share.drawn_ns;
	sums->usage_ns += share.usage_ns + share.behind_ns;
	return 0;
}

/* What was used in the period that ends. Writing a quota, also the same one, refills it and takes back what CPUs have
 * drawn: then only the scheduler's own account covers the whole period. */
static __always_inline __s64 used_since(const struct start *start, const struct start *now, __s64 pool_used_ns)
{
	if (!start)
		return pool_used_ns - now->drawn_ns;
	if (start->written || start->quota_ns != now->quota_ns)
		return now->usage_ns - start->usage_ns;
	return pool_used_ns + start->drawn_ns - now->drawn_ns;
}

static __always_inline __u64 group_of(struct cfs_bandwidth *pool)
{
	struct task_group *tg = (void *)pool - bpf_core_field_offset(struct task_group, cfs_bandwidth);

	return BPF_CORE_READ(tg, css.cgroup, kn, id);
}

static __always_inline __u64 *running_timer(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&running, &first);
}

/* Under cfs_b->lock: the group's values as they will be when this period is accounted for. */
static __always_inline void fill(struct tb_period *record, struct cfs_bandwidth *pool, __u64 overrun)
{
	struct task_group *tg = (void *)pool - bpf_core_field_offset(struct task_group, cfs_bandwidth);
	struct list_head *throttled = (void *)pool + bpf_core_field_offset(struct cfs_bandwidth, throttled_cfs_rq);
	struct sums sums = {.queues = BPF_CORE_READ(tg, cfs_rq), .entities = BPF_CORE_READ(tg, se)};
	struct start now = {.quota_ns = BPF_CORE_READ(pool, quota)};
	struct start *start;

	bpf_loop(constants.cpu_count, add_cpu, &sums, 0);
	now.drawn_ns = sums.drawn_ns;
	record->id = group_of(pool);
	now.usage_ns = USAGE_NS(record->id, &sums);
	record->quota_ns = now.quota_ns;
	record->usage_ns = now.usage_ns;
	start = bpf_map_lookup_elem(&starts, &record->id);
	/* runtime_snap is what was in the pool after the refill: the quota, or more with a burst. */
	record->unused_ns = record->quota_ns - used_since(start, &now, BPF_CORE_READ(pool, runtime_snap) -
								       BPF_CORE_READ(pool, runtime));
	if (start)
		*start = now;
	else
		bpf_map_update_elem(&starts, &record->id, &now, BPF_ANY);
	record->nr_periods = BPF_CORE_READ(pool, nr_periods) + overrun;
	record->nr_throttled = BPF_CORE_READ(pool, nr_throttled);
	if (BPF_CORE_READ(throttled, next) != throttled)
		record->nr_throttled += overrun;
	record->throttled_ns = BPF_CORE_READ(pool, throttled_time);
}

SEC("fentry/sched_cfs_period_timer")
int BPF_PROG(period_timer, struct hrtimer *timer)
{
	__u64 *slot = running_timer();

	if (slot)
		*slot = (__u64)timer;
	return 0;
}

SEC("fexit/hrtimer_forward")
int BPF_PROG(forwarded, struct hrtimer *timer, ktime_t now, ktime_t interval, u64 overrun)
{
	struct cfs_bandwidth *pool = (void *)timer - bpf_core_field_offset(struct cfs_bandwidth, period_timer);
	__u64 *slot = running_timer();
	struct tb_period record = {.time_ns = now};

	/* Every timer that repeats itself comes here, and a group's own when it awakes from being idle. */
	if (!slot || *slot != (__u64)timer)
		return 0;
	if (!overrun) { /* the last call of the timer's function */
		*slot = 0;
		return 0;
	}
	if (BPF_CORE_READ(pool, quota) == RUNTIME_INF)
		return 0;
	fill(&record, pool, overrun); /* even if it is lost: the next period begins here */
	if (bpf_ringbuf_output(&records, &record, sizeof(record), 0))
		__sync_fetch_and_add(&lost, 1);
	return 0;
}

/* Where a quota is written; the timer has this function inlined, or comes here as well. */
SEC("fentry/__refill_cfs_bandwidth_runtime")
int BPF_PROG(written, struct cfs_bandwidth *pool)
{
	__u64 *slot = running_timer(), id;
	struct start *start;

	if (slot && *slot == (__u64)pool + bpf_core_field_offset(struct cfs_bandwidth, period_timer))
		return 0;
	id = group_of(pool);
	start = bpf_map_lookup_elem(&starts, &id);
	if (start)
		start->written = 1;
	return 0;
}
