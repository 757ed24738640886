/* What the loader sets in every program before it is loaded: constants to the verifier. */
#ifndef TB_CONSTANTS_H
#define TB_CONSTANTS_H

#include "records.h"

struct tb_constants {
	__u32 version;    /* TB_VERSION of the file: another one than the loader's is refused */
	__u32 cpu_count;  /* the highest number of a possible CPU, plus one */
	__u64 page_bytes;
	__u64 pidns_dev;  /* namespace of processes that the loader and the agent are in */
	__u64 pidns_ino;
	__u64 agent_pid;  /* in it */
};

#define TB_CONSTANTS {.version = TB_VERSION, .cpu_count = 1, .page_bytes = 4096}

/* Of the programs for congestion control. */
#define TB_CONGESTION_BYTES 16 /* TCP_CA_NAME_MAX */
struct tb_congestion_constants {
	__u32 version;                  /* TB_VERSION of the file */
	__u32 slope;                    /* of F(r), in units of 1/1024 */
	__u32 intercept;
	char name[TB_CONGESTION_BYTES]; /* that sockops.bpf.c gives */
};

/* In the file instead of the name that an algorithm is registered by: the loader puts one there that is free. */
#define TB_NAME_PLACE "tb_name_is_here"

#define TB_CONGESTION_CONSTANTS {.version = TB_VERSION, .slope = 1792, .intercept = 256} /* 1.75 r + 0.25 */

#endif
