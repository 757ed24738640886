/* What can be loaded, each by itself: where one cannot, the others are there all the same. */
#ifndef TB_UNITS_H
#define TB_UNITS_H

#include <bpf/libbpf.h>
#include <linux/types.h>
#include <stddef.h>

#include "channel.h"
#include "report.h"

enum { UNIT_COUNT = 6, MAX_PROGRAMS = 4 };

struct unit {
	const char *name;                   /* in TB_STATUS */
	const char *file;                   /* without .bpf.o */
	const char *programs[MAX_PROGRAMS]; /* of the file, these; the others stay out */
	const char *optional[MAX_PROGRAMS]; /* these too, where file and kernel have them */
	__u32 kind;                         /* of the packets that its records, or its descriptors, go out in */
	size_t record_bytes;
};

extern const struct unit units[UNIT_COUNT];

struct request {
	const char *objects;       /* directory */
	const char *hierarchies[MAX_HIERARCHIES];
	int hierarchy_count;
	__u32 ring_bytes;          /* 0: as the file says */
	__u32 agent_pid;           /* whose writes are not told */
};

struct loaded {
	struct bpf_object *objects[MAX_HIERARCHIES]; /* an iterator's map is of one hierarchy only; others have one */
	int count;                                   /* 0: it failed */
	struct descriptors handed;                   /* to the agent: an iterator's links and maps, or one map */
	char failure[MAX_REASON];                    /* for people; empty: it is there */
};

/* Load and attach; what is attached ends with this process. */
void load_unit(const struct unit *unit, const struct request *request, struct loaded *loaded);

#endif
