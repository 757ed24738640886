/* What crosses from the kernel to the agent: fixed records, native byte order, moments in ns of CLOCK_MONOTONIC.
 * services/_host/bpf/records.py is the other end. A change of any of them is a new TB_VERSION. */
#ifndef TB_RECORDS_H
#define TB_RECORDS_H

#define TB_VERSION 7

/* A row of the table of control groups. Version 1 has one row of a container in each hierarchy, with zeros where the
 * other one's numbers are: their sum is the container's, as version 2 has it in one row. The agent sees no more than a
 * matrix of 64-bit numbers; five counters stand together, in the order in which it wants them. */
struct tb_group {
	__u64 id;              /* inode number of the group's directory */
	__u32 flags;           /* TB_HAS_... */
	__u32 level;           /* 0: the root of the hierarchy */
	__u64 nr_periods;
	__u64 nr_throttled;
	__u64 throttled_us;    /* summed over CPUs */
	__u64 usage_us;        /* CPU time since the group was made, of groups below too */
	__s64 memory_bytes;    /* in use, of groups below too */
	__s64 quota_us;        /* per TB_PERIOD_US, whatever the group's own period is; -1: none */
	__s64 limit_bytes;     /* memory.limit_in_bytes, memory.max; -1: none */
	__s64 high_bytes;      /* memory.high; -1: none */
	__u64 local_kills;     /* of this group's tasks, by the OOM killer */
	__u64 kills;           /* of groups below too */
	__u64 boundary_ns;     /* when the period under way ends; 0: no period is under way, the group is idle */
};

#define TB_TABLE_ROWS 16384u /* that a table has room for */
#define TB_PERIOD_US 100000ull
#define TB_HAS_CPU 1u
#define TB_HAS_MEMORY 2u
#define TB_UNDER_OOM 4u    /* version 1: tasks may wait at the limit */
#define TB_KILL_DISABLED 8u /* version 1: oom_kill_disable */
#define TB_THROTTLED 16u   /* a CPU of the group is throttled now: counted only when its period ends */

/* One CFS period that has ended (several, where the timer came late), taken before the quota is refilled. */
struct tb_period {
	__u64 id;
	__u64 time_ns;         /* when it ended */
	__s64 quota_ns;        /* that was in force; per the group's own period */
	__s64 unused_ns;       /* quota_ns less what was used in this period; negative: overdrawn, or out of a burst */
	__u64 usage_ns;        /* CPU time since the group was made, by the scheduler's account of the group itself */
	__u64 nr_periods;      /* this one included */
	__u64 nr_throttled;    /* this one included */
	__u64 throttled_ns;    /* of throttlings that have ended: one that lasts until now is in the next record */
};

/* The kernel is about to choose a victim (TB_OOM_DECISION), or has (TB_OOM_VICTIM). Of a decision id and numbers are those
 * of the group at its limit, of a victim those of its own. Each comes by a ring of its own: time_ns has the order. */
struct tb_oom {
	__u64 id;
	__u64 time_ns;
	__u32 kind;
	__u32 pid;             /* of the victim; 0: none yet */
	__s64 memory_bytes;
	__s64 limit_bytes;
};

#define TB_OOM_DECISION 1u
#define TB_OOM_VICTIM 2u

/* The process that wrote a group's CPU quota or period last, as it was then: both it and its group may be gone. A map has
 * them by the id of the group written to. The agent's own writes delete the entry. */
#define TB_WRITER_LEVELS 8
#define TB_COMM_BYTES 16
#define TB_NAME_BYTES 96
struct tb_writer {
	__u32 pid;             /* of the process, as the first namespace counts */
	__u32 levels;          /* of names; one more than there are: the path is longer */
	char comm[TB_COMM_BYTES];
	char names[TB_WRITER_LEVELS][TB_NAME_BYTES]; /* of its group, and of those above, without the root */
};

/* One iteration of one TCP connection under MLTCP: recorded when the next one begins. */
struct tb_iteration {
	__u64 time_ns;         /* when it began to send */
	__u64 period_ns;       /* until it began to send again, in the next iteration */
	__u64 sending_ns;      /* until its last segment was sent */
	__u64 sent_bytes;      /* and acknowledged */
	__u64 cgroup_id;       /* inode number of the socket's group of version 2; 0: not known */
	__u32 retransmissions; /* segments */
	__u16 source_port;
	__u16 destination_port;
	__u8 source[16];       /* IPv6, or IPv4 mapped into it */
	__u8 destination[16];
	char congestion_control[16];
};

/* Since they were loaded, of all connections under MLTCP. */
struct tb_congestion_counters {
	__u64 flows;           /* connections of which an iteration is known */
	__u64 iterations;
	__u64 scaled_acks;     /* acknowledgements that counted for more, or less, than one of Reno's */
	__u64 lost;            /* iterations that could not be recorded, as the ring was full */
};

/* What the loader writes: datagrams on a socket (SOCK_SEQPACKET), each a header and a payload. */
struct tb_header {
	__u32 version;
	__u32 kind;
};

#define TB_TABLE 1u   /* no payload; descriptors (SCM_RIGHTS): an iterator link per hierarchy, in the order asked for, and then
		       * the map of each, struct tb_group[TB_TABLE_ROWS]. Reading what BPF_ITER_CREATE makes of the link
		       * fills the map, and returns how many groups there are: __u64. */
#define TB_STATUS 2u  /* text: "NAME ok" or "NAME failed: WHY" of a unit (units.c) */
#define TB_READY 3u   /* all units have been tried; no payload. With none loaded the loader ends */
#define TB_PERIODS 4u /* struct tb_period[] */
#define TB_OOMS 5u    /* struct tb_oom[] */
#define TB_LOST 6u    /* __u64: records lost so far, because the ring was full */
#define TB_THROTTLE_RING 7u /* no payload; descriptor: a ring buffer that becomes readable when a group has used up its quota.
		       * What is in it says nothing, and whoever listens empties it. */
#define TB_WRITERS 8u /* no payload; descriptor: a map of struct tb_writer by __u64 */
#define TB_ITERATIONS 9u /* struct tb_iteration[] */
#define TB_SOCKOPS 10u /* text: a congestion control's name, and after a space the one that the host knows it by; descriptor:
			* the program that gives it to a control group */
#define TB_CONGESTION_COUNTERS 11u /* struct tb_congestion_counters; after iterations, and when the other end asks by
		       * sending anything */

#endif
